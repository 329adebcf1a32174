"""Advice that fails is no advice: not for this engine's alerts, not for the engine next door, not for the target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kvwatch.advice import remembered
from kvwatch.advice.advise import advise
from kvwatch.assess import Judge, Judgement
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.model import Change, EngineId, Scrape, Snapshot, State, Verdict

BAD, GOOD = EngineId("demo-8b", "0"), EngineId("demo-8b", "1")


def storming(at: float, engine: EngineId) -> Snapshot:
    """A preemption and a finished request a second, with a queue and a full cache."""
    count: dict[str, Any] = {"preemptions": at, "finished": at, "generation_tokens": 50 * at, "prompt_tokens": 50 * at, "steps": 10 * at}
    return Snapshot(engine, at, running=9.0, waiting=20.0, kv_usage=0.99, **count)


def storm(judge: Judge) -> Iterator[Judgement]:
    for at in range(0, 180, 5):
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
