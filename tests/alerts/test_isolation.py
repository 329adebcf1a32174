"""An error of kvwatch's own costs one engine the one thing that failed: not its alerts, not the engine next door, not the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import pytest

from kvwatch.advice import remembered
from kvwatch.advice.advise import advise
from kvwatch.alerts import evaluation
from kvwatch.alerts.definition import Facts
from kvwatch.alerts.registry import ENGINE_ALERTS
from kvwatch.assess import Judge, Judgement
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.model import Cause, Change, EngineConfig, EngineId, Scrape, Snapshot, State, Verdict

BAD, GOOD = EngineId("demo-8b", "0"), EngineId("demo-8b", "1")
POOLS = {BAD: 20_000, GOOD: 30_000}


def storming(at: float, engine: EngineId) -> Snapshot:
    """A preemption and a finished request a second, with a queue and a full cache."""
    count: dict[str, Any] = {"preemptions": at, "finished": at, "generation_tokens": 50 * at, "prompt_tokens": 50 * at, "steps": 10 * at}
    return Snapshot(engine, at, running=9.0, waiting=20.0, kv_usage=0.99, config=EngineConfig(kv_cache_size_tokens=POOLS[engine]), **count)


def storm(judge: Judge, lasts: int = 180) -> Iterator[Judgement]:
    for at in range(0, lasts, 5):
        yield judge.scraped(Scrape(float(at), (storming(at, BAD), storming(at, GOOD))))


def test_advice_that_raises_is_no_advice_and_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(verdict: Verdict, *rest: Any, **more: Any) -> tuple[Change, ...]:
        if verdict.engine == BAD and verdict.state is not State.UNKNOWN:
            raise ZeroDivisionError("an error of ours")
        return advise(verdict, *rest, **more)

    sound = list(storm(Judge(Policy(), KnownConfig(), 5.0)))
    monkeypatch.setattr(remembered, "advise", breaks)
    broken = list(storm(Judge(Policy(), KnownConfig(), 5.0)))

    assert {alert.name for alert in sound[-1].assessments[0].alerts} >= {"PreemptionStorm", "KVBound"}
    for with_advice, without in zip(sound, broken, strict=True):
        assert without.alerts == with_advice.alerts
        bad, good = without.assessments
        assert good == with_advice.assessments[1]
        assert bad.advice == ()
        assert [alert.name for alert in bad.alerts] == [alert.name for alert in with_advice.assessments[0].alerts]
        assert replace(bad, advice=(), alerts=()) == replace(with_advice.assessments[0], advice=(), alerts=())
        assert [type(fault) for fault in without.faults] == [ZeroDivisionError] * (bad.verdict.state is not State.UNKNOWN)
        assert with_advice.faults == ()


def is_bad_config(config: EngineConfig, *_: Any) -> bool:
    return config.kv_cache_size_tokens == POOLS[BAD]


def is_bad_signals(signals: Any, *_: Any) -> bool:
    return bool(signals.capacity_tokens == POOLS[BAD])


STEPS: dict[str, Callable[..., bool]] = {
    "kvwatch.classifier.target.pool_tokens": is_bad_config,
    "kvwatch.classifier.target.shape_of": is_bad_config,
    "kvwatch.classifier.engine.derive": lambda history, *_: bool(history.last.engine == BAD),
    "kvwatch.classifier.engine.find": is_bad_signals,
    "kvwatch.classifier.engine.is_storm": is_bad_signals,
}
"""What is done for one engine after another before advice is looked for: capacity, signals, cause with its evidence, storm."""


@pytest.mark.parametrize("step", STEPS)
def test_a_verdict_that_fails_leaves_its_engine_unseen_and_every_other_word_as_it_was(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def of(judged: Judgement, engine: EngineId) -> tuple[Verdict, dict[str, float]]:
        (one,) = (a for a in judged.assessments if a.verdict.engine == engine)
        return one.verdict, {alert.name: alert.since for alert in one.alerts}

    whole, begins = resolve_name(step), [False]

    def breaks(*given: Any, **more: Any) -> Any:
        if begins[0] and STEPS[step](*given):
            raise ZeroDivisionError("an error of ours")
        return whole(*given, **more)

    monkeypatch.setattr(step, breaks)
    sound = list(storm(Judge(Policy(), KnownConfig(), 5.0), 600))
    broken = []
    for judged in storm(Judge(Policy(), KnownConfig(), 5.0), 600):
        broken.append(judged)
        begins[0] = len(broken) >= 30  # from 150 s on

    for at, well, ill in zip(range(0, 600, 5), sound, broken, strict=True):
        assert (of(ill, GOOD), ill.alerts, ill.conditions) == (of(well, GOOD), well.alerts, well.conditions)
        verdict, alerts = of(ill, BAD)
        if at < 150:
            assert (verdict, alerts, ill.faults) == (*of(well, BAD), ())
            continue
        assert (verdict.state, verdict.cause, verdict.storm) == (State.UNKNOWN, Cause.AMBIGUOUS, None)
        assert verdict.evidence == ("kvwatch failed: ZeroDivisionError, its log says where",)
        assert [type(fault) for fault in ill.faults] == [ZeroDivisionError]
        # What it last saw was at 145 s: that stands for 90 s, then the warning has its hold of 60 s, and blindness is told after 300 s.
        assert {"PreemptionStorm": at <= 235, "KVBound": at < 295, "WatcherBlind": at >= 450} == {
            name: name in alerts for name in ("PreemptionStorm", "KVBound", "WatcherBlind")
        }


def fails(facts: Facts) -> Any:
    if facts.verdict.engine == BAD:
        raise KeyError("an error of ours")
    return True


def names_and_texts(judged: Judgement, place: int) -> dict[str, str]:
    return {alert.name: alert.description for alert in judged.assessments[place].alerts}


@pytest.mark.parametrize("broken", ENGINE_ALERTS, ids=lambda alert: alert.name)
@pytest.mark.parametrize("part", ["condition", "seconds_before", "describe"])
def test_an_alert_that_fails_costs_no_other_alert_anything_and_a_text_that_fails_is_its_summary(
    monkeypatch: pytest.MonkeyPatch, broken: Any, part: str
) -> None:
    sound = list(storm(Judge(Policy(), KnownConfig(), 5.0)))[-1]
    with_fault = replace(broken, **{part: lambda facts: fails(facts) and getattr(broken, part)(facts)})
    monkeypatch.setattr(evaluation, "ENGINE_ALERTS", tuple(with_fault if one is broken else one for one in ENGINE_ALERTS))
    ill = list(storm(Judge(Policy(), KnownConfig(), 5.0)))[-1]

    assert names_and_texts(ill, 1) == names_and_texts(sound, 1)
    expected = names_and_texts(sound, 0)
    if part != "describe":
        expected.pop(broken.name, None)
    elif broken.name in expected:
        expected[broken.name] = broken.summary
    assert names_and_texts(ill, 0) == expected
    # A text is written only for what holds, so nobody sees the others fail.
    holds = ill.assessments[0].conditions.get(broken.name)
    assert [type(fault) for fault in ill.faults] == [KeyError] * (part != "describe" or bool(holds))


def test_a_comparison_that_fails_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> None:
        raise ZeroDivisionError("an error of ours")

    sound = list(storm(Judge(Policy(), KnownConfig(), 5.0)))
    monkeypatch.setattr("kvwatch.runs.drift.Drift.observe", breaks)
    broken = list(storm(Judge(Policy(), KnownConfig(), 5.0)))
    assert [replace(one, faults=()) for one in broken] == sound
    assert {tuple(map(type, one.faults)) for one in broken} == {(ZeroDivisionError,)}
