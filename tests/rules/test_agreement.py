"""Prometheus' rules and kvwatch's own evaluation are two writings of one thing: on every recording they fire at the same scrapes.

A recording is judged as the daemon would have judged it, polled every 5 s, and exposed as the daemon would expose it to a
Prometheus that scrapes every 15 s. Those samples go to ``promtool test rules``; what is expected are the alerts that kvwatch's own
code raises from the same scrapes, also where polls of vLLM are lost. No difference is allowed.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from playing import decimated

from kvwatch.alerts.evaluation import EngineAlerts, TargetAlerts
from kvwatch.alerts.registry import DEFINITIONS
from kvwatch.assess import judge_for
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


def answer(entry: Entry) -> bytes:
    if entry.body is None:
        raise ScrapeError(FailureReason((entry.error or "").partition(":")[0]), "as recorded")
    return entry.body


@dataclass(frozen=True)
class Case:
    """A recording up to so many seconds, and the share of its polls that are lost."""

    path: Path
    until: float = math.inf
    lost: float = 0.0
    seed: int = 0


def polls(case: Case) -> Iterator[TargetView]:
    """What the daemon would have said after each poll."""
    chance = random.Random(case.seed)  # noqa: S311 - noise, not a secret
    judge = judge_for(SETTINGS, interval=POLL)
    with Reader(case.path, pytest.fail) as entries:
        first: float | None = None
        for entry in decimated(iter(entries), POLL):
            first = entry.t if first is None else first
            if entry.t - first > case.until:
                break
            failure = None
            try:
                body = answer(entry if chance.random() >= case.lost else replace(entry, body=None, error="timeout: lost"))
                judged = judge.scraped(parse_scrape(body, entry.t))
            except ScrapeError as fault:
                failure = ScrapeFailure(entry.t, fault.reason, fault.detail)
                judged = judge.failed(failure)
            yield TargetView("vllm", "http://vllm", POLL, at=entry.t, failure=failure, assessments=judged.assessments, alerts=judged.alerts)


@cache
def scrapes(case: Case) -> tuple[TargetView, ...]:
    """What Prometheus would have found every 15 s: the latest view at that time."""
    said = list(polls(case))
    start = said[0].at
    count = int((said[-1].at - start + TAIL) / SCRAPE)
    return tuple(
        replace([view for view in said if view.at <= at][-1], at=at) for at in (start + number * SCRAPE for number in range(count))
    )


def key(name: str, engine: EngineId | None) -> Key:
    return (DEFINITIONS[name].prometheus_name, engine.engine if engine else "", engine.model_name if engine else "")


@cache
def own(case: Case) -> tuple[frozenset[Key], ...]:
    """What kvwatch's own code fires at Prometheus' scrapes."""
    policy = SETTINGS.policy
    engines: dict[EngineId | None, EngineAlerts] = {}
    target = TargetAlerts(SCRAPE)
    found = []
    for view in scrapes(case):
        assert view.at is not None
        fires = {key(alert.name, None) for alert in target.update(view.at, view.failure)}
        for assessment in view.assessments:
            verdict = assessment.verdict
            alerts = engines.setdefault(verdict.engine, EngineAlerts(policy, SCRAPE))
            fires |= {key(alert.name, verdict.engine) for alert in alerts.update(view.at, verdict, assessment.signals, assessment.advice)}
        found.append(frozenset(fires))
    return tuple(found)


def series_of(views: tuple[TargetView, ...]) -> list[dict[str, str]]:
    """The exposition at each scrape as promtool's input series; a sample that is gone is a stale one."""
    values: dict[str, list[str]] = {}
    for number, view in enumerate(views):
        assert view.at is not None
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


def promtool_test(case: Case) -> dict[str, Any]:
    steps = [
        {
            "expr": 'count by (alertname, engine, model_name) (ALERTS{alertstate="firing", alertname!="KVWatchDown"})',
            "eval_time": f"{number * SCRAPE:.0f}s",
            "exp_samples": [{"labels": labels_of(*one), "value": 1} for one in sorted(firing)],
        }
        for number, firing in enumerate(own(case))
    ]
    return {
        "rule_files": [str(ROOT / "rules" / "kvwatch.rules.yaml")],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": series_of(scrapes(case)), "promql_expr_test": steps}],
    }


DOWN: Final = RECORDINGS[0].with_name("restart_under_storm.jsonl.xz")
CASES: Final = [
    *(pytest.param(Case(path), id=path.name.partition(".")[0]) for path in RECORDINGS),
    # One cut while its server is down, so that it stays down.
    pytest.param(Case(DOWN, until=70.0), id="restart_under_storm that never comes back"),
    *(
        pytest.param(Case(RECORDINGS[0].with_name(f"{name}.jsonl.xz"), lost=lost, seed=7), id=f"{name}, {lost:.0%} of the polls lost")
        for name in ("kv_storm", "kv_admission", "seq_limit", "restart_under_storm")
        for lost in (0.05, 0.2, 0.5)
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_prometheus_fires_what_kvwatch_fires(case: Case, tmp_path: Path, require_tool: Callable[[str], Path]) -> None:
    (tmp_path / "test.yaml").write_text(json.dumps(promtool_test(case)))
    result = subprocess.run(
        [str(require_tool("promtool")), "test", "rules", str(tmp_path / "test.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_recordings_make_most_alerts_fire() -> None:
    fired = {name for case in CASES for fires in own(*case.values) for name, _, _ in fires}
    # No recording shows a stall, or at kvwatch's own polls a missed objective, for long enough; a baseline none has.
    assert fired == {
        alert.prometheus_name
        for name, alert in DEFINITIONS.items()
        if name not in {"EngineStalled", "LatencyObjectiveMissed", "BaselineRegressed"}
    }
