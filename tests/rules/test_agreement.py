"""Prometheus' rules and kvwatch's own evaluation are two writings of one thing: on every recording they fire at the same scrapes.

A recording is judged as the daemon would have judged it, polled every 5 s, and exposed as the daemon would expose it to a
Prometheus that scrapes every 15 s. Those samples go to ``promtool test rules``; what is expected are the alerts that kvwatch's own
code raises from the same scrapes. Prometheus keeps an alert `HOLD_SECONDS` longer, for it cannot tell missing numbers from good
ones; no other difference is allowed.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from playing import decimated

from kvwatch.alerts.definitions import DEFINITIONS, ENGINE_ALERTS, HOLD_SECONDS, PROMETHEUS_PREFIX
from kvwatch.alerts.evaluation import EngineAlerts, TargetAlerts
from kvwatch.assess import judge_for, policy_of
from kvwatch.config.settings import Settings
from kvwatch.errors import ScrapeError
from kvwatch.exporter.metrics.collector import samples_of
from kvwatch.incident.recording import Entry, Reader
from kvwatch.model import EngineId, FailureReason, ScrapeFailure, TargetView
from kvwatch.poller.vllm import parse_scrape

ROOT: Final = Path(__file__).resolve().parents[2]
RECORDINGS: Final = sorted((ROOT / "tests" / "data" / "recordings").glob("*.jsonl.xz"))
POLL: Final = 5.0
SCRAPE: Final = 15.0
TAIL: Final = 960.0  # the last word of a recording stays for 16 minutes, so that every alert gets its time
SETTINGS: Final = Settings()

Key = tuple[str, str, str]
"""Name in Prometheus, engine and model name of an alert."""


@dataclass(frozen=True)
class Evaluation:
    """What kvwatch's own code finds at one scrape of Prometheus: the alerts that fire, and the conditions that hold."""

    fires: frozenset[Key]
    holds: frozenset[Key]


def answer(entry: Entry) -> bytes:
    if entry.body is None:
        raise ScrapeError(FailureReason((entry.error or "").partition(":")[0]), "as recorded")
    return entry.body


def polls(path: Path, until: float) -> Iterator[TargetView]:
    """What the daemon would have said after each poll of the first *until* seconds."""
    judge = judge_for(SETTINGS, interval=POLL)
    with Reader(path, pytest.fail) as entries:
        first: float | None = None
        for entry in decimated(iter(entries), POLL):
            first = entry.t if first is None else first
            if entry.t - first > until:
                break
            failure = None
            try:
                judged = judge.scraped(parse_scrape(answer(entry), entry.t))
            except ScrapeError as fault:
                failure = ScrapeFailure(entry.t, fault.reason, fault.detail)
                judged = judge.failed(failure)
            yield TargetView("vllm", "http://vllm", POLL, at=entry.t, failure=failure, assessments=judged.assessments, alerts=judged.alerts)


@cache
def scrapes(path: Path, until: float) -> tuple[TargetView, ...]:
    """What Prometheus would have found every 15 s: the latest view at that time."""
    said = list(polls(path, until))
    start = said[0].at
    count = int((said[-1].at - start + TAIL) / SCRAPE)
    return tuple(
        replace([view for view in said if view.at <= at][-1], at=at) for at in (start + number * SCRAPE for number in range(count))
    )


def key(name: str, engine: EngineId | None) -> Key:
    return (PROMETHEUS_PREFIX + name, engine.engine if engine else "", engine.model_name if engine else "")


@cache
def own(path: Path, until: float) -> tuple[Evaluation, ...]:
    """What kvwatch's own code finds at Prometheus' scrapes."""
    policy = policy_of(SETTINGS)
    books: dict[EngineId | None, EngineAlerts] = {}
    target = TargetAlerts()
    found = []
    for view in scrapes(path, until):
        fires = {key(alert.name, None) for alert in target.update(view.at, view.failure)}
        holds = set(fires)
        for assessment in view.assessments:
            verdict, signals = assessment.verdict, assessment.signals
            book = books.setdefault(verdict.engine, EngineAlerts(policy))
            fires |= {key(alert.name, verdict.engine) for alert in book.update(view.at, verdict, signals)}
            holds |= {key(one.name, verdict.engine) for one in ENGINE_ALERTS if one.condition(policy, verdict, signals)}
        found.append(Evaluation(frozenset(fires), frozenset(holds)))
    return tuple(found)


def expected(path: Path, until: float) -> list[set[Key]]:
    """What Prometheus must fire: the same, and each alert until `HOLD_SECONDS` after its condition was last met."""
    firing: set[Key] = set()
    met: dict[Key, float] = {}
    steps = []
    for number, evaluation in enumerate(own(path, until)):
        at = number * SCRAPE
        met |= dict.fromkeys(evaluation.holds, at)
        firing = set(evaluation.fires) | {one for one in firing if at - met[one] <= HOLD_SECONDS}
        steps.append(firing)
    return steps


def series_of(views: tuple[TargetView, ...]) -> list[dict[str, str]]:
    """The exposition at each scrape as promtool's input series; a sample that is gone is a stale one."""
    values: dict[str, list[str]] = {}
    for number, view in enumerate(views):
        for family, labels, value in samples_of(view, view.at):
            name = family.name + ("_total" if family.kind == "counter" else "")
            pairs = ", ".join(f"{label}={json.dumps(text)}" for label, text in sorted(labels.items()))
            column = values.setdefault(f"{name}{{{pairs}}}", ["_"] * number)
            column.extend(["stale"] * (number - len(column)))
            column.append(repr(value))
    return [{"series": name, "values": " ".join([*column, *["stale"] * (len(views) - len(column))])} for name, column in values.items()]


def labels_of(name: str, engine: str, model_name: str) -> str:
    """As promtool writes them: an empty label is none."""
    pairs = {"alertname": name, "engine": engine, "model_name": model_name}
    return "{" + ", ".join(f"{label}={json.dumps(text)}" for label, text in pairs.items() if text) + "}"


def promtool_test(path: Path, until: float) -> dict[str, Any]:
    steps = [
        {
            "expr": 'count by (alertname, engine, model_name) (ALERTS{alertstate="firing", alertname!="KVWatchDown"})',
            "eval_time": f"{number * SCRAPE:.0f}s",
            "exp_samples": [{"labels": labels_of(*one), "value": 1} for one in sorted(firing)],
        }
        for number, firing in enumerate(expected(path, until))
    ]
    return {
        "rule_files": [str(ROOT / "rules" / "kvwatch.rules.yaml")],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": series_of(scrapes(path, until)), "promql_expr_test": steps}],
    }


# Each recording to its end, and one cut while its server is down, so that it stays down.
CASES: Final = [
    *(pytest.param(path, math.inf, id=path.name.partition(".")[0]) for path in RECORDINGS),
    pytest.param(RECORDINGS[0].with_name("restart_under_storm.jsonl.xz"), 70.0, id="restart_under_storm that never comes back"),
]


@pytest.mark.parametrize(("path", "until"), CASES)
def test_prometheus_fires_what_kvwatch_fires(path: Path, until: float, tmp_path: Path, require_tool: Callable[[str], Path]) -> None:
    (tmp_path / "test.yaml").write_text(json.dumps(promtool_test(path, until)))
    result = subprocess.run(
        [str(require_tool("promtool")), "test", "rules", str(tmp_path / "test.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_recordings_make_most_alerts_fire() -> None:
    fired = {name for case in CASES for evaluation in own(*case.values) for name, _, _ in evaluation.fires}
    # No recording shows a stall, or at kvwatch's own polls a missed objective, for long enough.
    assert fired == {PROMETHEUS_PREFIX + name for name in set(DEFINITIONS) - {"EngineStalled", "LatencyObjectiveMissed"}}
