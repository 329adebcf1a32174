"""Prometheus' rules beside kvwatch's own alerts, on recordings of which polls are lost.

``PYTHONPATH=tests python tests/rules/agreement.py FOLDER… [--lost 0 0.05 0.2 0.5] [--seeds 5]`` plays every recording of the folders.

A recording is judged as the daemon would have judged it, polled every 5 s, and exposed as the daemon would expose it to a Prometheus that
scrapes and evaluates every 15 s; the last word of a recording stays for 16 minutes, so that every alert gets its time. Three questions:

- Do the rules (``promtool test rules``) fire at exactly the scrapes at which kvwatch's state machine does, told only what was scraped?
- Do both roads tell the same, each alert once, no further apart than one evaluation?
- Does either road miss, split or invent a page, held against the recording's labels?
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import yaml
from playing import decimated
from storms import Firing, engines_of, faults_of_pages, labelled

from kvwatch.alerts.definition import AlertDefinition
from kvwatch.alerts.evaluation import EngineAlerts, TargetAlerts
from kvwatch.alerts.registry import DEFINITIONS
from kvwatch.alerts.state import AlertState
from kvwatch.alerts.times import EVIDENCE_SECONDS
from kvwatch.assess import judge_for
from kvwatch.config.policy import Objectives
from kvwatch.config.settings import Settings
from kvwatch.errors import ScrapeError
from kvwatch.exporter.freshness import as_of, is_stale
from kvwatch.exporter.metrics.collector import samples_of
from kvwatch.incident.recording import Entry, Reader
from kvwatch.model import Assessment, Cause, EngineId, FailureReason, ScrapeFailure, State, TargetView, Verdict
from kvwatch.poller.vllm import parse_scrape

ROOT: Final = Path(__file__).resolve().parents[2]
POLL: Final = 5.0
SCRAPE: Final = 15.0
TAIL: Final = 960.0
SETTINGS: Final = Settings(objectives=Objectives(time_to_first_token=2.0))

BY_NAME: Final = {alert.prometheus_name: alert for alert in DEFINITIONS.values()}
WAITED: Final = {name for name, alert in DEFINITIONS.items() if alert.rule.waited}
STORM: Final = DEFINITIONS["PreemptionStorm"].prometheus_name

RULES: Final = ROOT / "rules" / "kvwatch.rules.yaml"
READ: Final = {
    name
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
    for name in re.findall(r"kvwatch_\w+", rule["expr"])
}
"""The metrics that decide whether an alert fires; the others are in its text alone."""

Key = tuple[str, str, str]
"""Name in Prometheus, engine and model name of an alert."""


@dataclass(frozen=True)
class Case:
    """A recording up to so many seconds, and the share of its polls that are lost."""

    path: Path
    until: float = math.inf
    lost: float = 0.0
    seed: int = 0


def state_in_prometheus(alert: AlertDefinition) -> AlertState:
    """What Prometheus waits of an alert."""
    for_seconds, hold = (0.0, 0.0) if alert.rule.waited else (alert.for_seconds, alert.hold_seconds)
    return AlertState(for_seconds=for_seconds, hold=hold, evidence=EVIDENCE_SECONDS)


def key(name: str, engine: EngineId | None) -> Key:
    """What tells one alert of a target from another."""
    return (DEFINITIONS[name].prometheus_name, engine.engine if engine else "", engine.model_name if engine else "")


@cache
def polls(case: Case) -> tuple[TargetView, ...]:
    """What the daemon would have said after each poll."""
    engines: dict[EngineId | None, EngineAlerts] = {}
    target = TargetAlerts(POLL)
    found = []
    for view in _views(case):
        assert view.at is not None
        said = []
        for one in view.assessments:
            alerts = engines.setdefault(one.verdict.engine, EngineAlerts(SETTINGS.policy, POLL))
            fires = alerts.update(view.at, one.verdict, one.signals, one.advice)
            said.append(replace(one, alerts=fires, conditions=alerts.conditions))
        firing = target.update(view.at, view.failure)
        found.append(replace(view, alerts=firing, conditions=target.conditions, assessments=tuple(said)))
    return tuple(found)


def _views(case: Case) -> Iterator[TargetView]:
    chance = random.Random(case.seed)  # noqa: S311 - noise, not a secret
    judge, view, good = judge_for(SETTINGS, interval=POLL), None, None
    with Reader(case.path, lambda fault: sys.exit(str(fault))) as entries:
        first: float | None = None
        for entry in decimated(iter(entries), POLL):
            first = entry.t if first is None else first
            if entry.t - first > case.until:
                break
            failure = None
            try:
                judged = judge.scraped(parse_scrape(_body(entry, lost=chance.random() < case.lost), entry.t))
            except ScrapeError as fault:
                failure = ScrapeFailure(entry.t, fault.reason, fault.detail)
                judged = judge.failed(failure)
            view = TargetView("vllm", "http://vllm", POLL, at=entry.t, failure=failure, assessments=judged.assessments)
            good = view if failure is None or failure.detail != _LOST else good
            yield view
    if view is None or view.at is None:
        sys.exit(f"{case.path} is empty")
    good = good or view
    for number in range(1, int(TAIL / POLL)):
        at = view.at + number * POLL
        yield _unanswered(good, at) if chance.random() < case.lost else replace(good, at=at)


_LOST: Final = "lost"


def _body(entry: Entry, *, lost: bool) -> bytes:
    if lost:
        raise ScrapeError(FailureReason.TIMEOUT, _LOST)
    if entry.body is None:
        raise ScrapeError(FailureReason((entry.error or "").partition(":")[0]), "as recorded")
    return entry.body


def _unanswered(good: TargetView, at: float) -> TargetView:
    unknown = tuple(Assessment(Verdict(one.verdict.engine, State.UNKNOWN, Cause.UNREACHABLE, (), at), None) for one in good.assessments)
    return replace(good, at=at, failure=ScrapeFailure(at, FailureReason.TIMEOUT, _LOST), assessments=unknown)


@cache
def scrapes(case: Case) -> tuple[tuple[float, TargetView], ...]:
    """What Prometheus would have found every 15 s: the time, and the latest view at that time."""
    said = polls(case)
    start, end = said[0].at or 0.0, said[-1].at or 0.0
    found, position = [], 0
    for number in range(int((end - start) / SCRAPE)):
        at = start + number * SCRAPE
        while position + 1 < len(said) and (said[position + 1].at or 0.0) <= at:
            position += 1
        found.append((at, said[position]))
    return tuple(found)


@cache
def expected(case: Case) -> tuple[frozenset[Key], ...]:
    """What fires at Prometheus' evaluations by kvwatch's own state machine, told only the conditions that were scraped."""
    states: dict[Key, AlertState] = {}
    found = []
    for at, view in scrapes(case):
        shown = as_of(view, at)
        seen = {key(name, None): holds for name, holds in shown.conditions.items()}
        for one in shown.assessments:
            seen |= {key(name, one.verdict.engine): holds for name, holds in one.conditions.items() if name not in WAITED}
            if not is_stale(view, at):
                active = {alert.name for alert in one.alerts}
                seen |= {key(name, one.verdict.engine): name in active for name in WAITED}
        for new in seen.keys() - states.keys():
            states[new] = state_in_prometheus(BY_NAME[new[0]])
        for known, state in states.items():
            state.step(at, seen.get(known))
        found.append(frozenset(known for known, state in states.items() if state.since is not None))
    return tuple(found)


def series_of(scraped: tuple[tuple[float, TargetView], ...]) -> list[dict[str, str]]:
    """What the alerts' expressions read of the exposition at each scrape, as promtool's input series; a sample that is gone is stale."""
    values: dict[str, list[str]] = {}
    for number, (at, view) in enumerate(scraped):
        for sample in samples_of(view, at):
            name = sample.family.name + ("_total" if sample.family.kind == "counter" else "")
            if name not in READ:
                continue
            labels = {**sample.whose, **sample.which}
            pairs = ", ".join(f"{label}={json.dumps(text)}" for label, text in sorted(labels.items()))
            column = values.setdefault(f"{name}{{{pairs}}}", ["_"] * number)
            column.extend(["stale"] * (number - len(column)))
            column.append(repr(sample.value))
    return [{"series": name, "values": " ".join([*column, *["stale"] * (len(scraped) - len(column))])} for name, column in values.items()]


def _labels_of(name: str, engine: str, model_name: str) -> str:
    """As promtool writes them: an empty label is none."""
    pairs = {"alertname": name, "engine": engine, "model_name": model_name}
    return "{" + ", ".join(f"{label}={json.dumps(text)}" for label, text in pairs.items() if text) + "}"


def promtool_test(case: Case) -> dict[str, Any]:
    """A file for ``promtool test rules``: what was scraped, and at each evaluation what `expected` fires."""
    steps = [
        {
            "expr": 'count by (alertname, engine, model_name) (ALERTS{alertstate="firing", alertname!="KVWatchDown"})',
            "eval_time": f"{number * SCRAPE:.0f}s",
            "exp_samples": [{"labels": _labels_of(*one), "value": 1} for one in sorted(firing)],
        }
        for number, firing in enumerate(expected(case))
    ]
    return {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{SCRAPE:.0f}s",
        "tests": [{"interval": f"{SCRAPE:.0f}s", "input_series": series_of(scrapes(case)), "promql_expr_test": steps}],
    }


def rules_differ(case: Case, promtool: Path) -> str:
    """What promtool says against `expected`; empty where the rules fire at the same scrapes."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(promtool_test(case), file)
        file.flush()
        result = subprocess.run([str(promtool), "test", "rules", file.name], capture_output=True, text=True, check=False, timeout=120)
    return "" if result.returncode == 0 else result.stdout + result.stderr


def _firing(times: list[tuple[float, frozenset[Key]]]) -> dict[Key, Firing]:
    """Begin and end of each firing, in seconds; one that does not end, ends never."""
    found: dict[Key, Firing] = {}
    for number, (at, fires) in enumerate(times):
        before = times[number - 1][1] if number else frozenset[Key]()
        for one in fires - before:
            found.setdefault(one, []).append((at, math.inf))
        for one in before - fires:
            found[one][-1] = (found[one][-1][0], at)
    return found


def own_firing(case: Case) -> dict[Key, Firing]:
    """When each alert fires in kvwatch, in seconds from the first poll."""
    start = polls(case)[0].at or 0.0
    return _firing(
        [
            (
                (view.at or 0.0) - start,
                frozenset(
                    [key(alert.name, None) for alert in view.alerts]
                    + [key(alert.name, one.verdict.engine) for one in view.assessments for alert in one.alerts]
                ),
            )
            for view in polls(case)
        ]
    )


def prometheus_firing(case: Case) -> dict[Key, Firing]:
    """When each alert fires in Prometheus, as far as `rules_differ` finds nothing."""
    return _firing([(number * SCRAPE, fires) for number, fires in enumerate(expected(case))])


def disagreements(own: Firing, other: Firing, *, hold: float = 0.0, within: float = SCRAPE) -> Iterator[str]:
    """Where two roads tell one alert, of that hold, differently: *other* held against *own*."""
    for begin, end in own:
        match = [one for one in other if one[0] <= end + within and one[1] >= begin]
        if not match and end - begin > hold + within:  # else it was over before it could be told
            yield f"missed {begin:.0f}-{end:.0f}"
        if len(match) > 1:
            yield f"split {begin:.0f}-{end:.0f}: {match}"
        if len(match) == 1:
            ((begins, ends),) = match
            if abs(begins - begin) > within:
                yield f"begins {begins - begin:+.0f} s"
            if ends != end and abs(ends - end) > within:
                yield f"ends {ends - end:+.0f} s"
    for begin, end in other:
        if not any(one[0] <= end and one[1] + within >= begin for one in own):
            yield f"invented {begin:.0f}-{end:.0f}"


def main() -> int:
    """Count over folders; exit code 1 where anything was found."""
    parser = argparse.ArgumentParser(description="Prometheus' rules beside kvwatch's own alerts, on recordings of which polls are lost.")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--lost", nargs="+", type=float, default=[0.0, 0.05, 0.2, 0.5])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--promtool", type=Path, default=ROOT / ".cache" / "tools" / "promtool")
    parser.add_argument("--no-promtool", action="store_true", help="leave the first question out")
    asked = parser.parse_args()
    runs, found, intervals = 0, Counter[str](), 0
    for folder, lost in product(asked.folders, asked.lost):
        labels = labelled(folder)
        for path in sorted(folder.glob("*.jsonl.xz")):
            for seed in range(asked.seeds if lost else 1):
                case = Case(path, lost=lost, seed=seed)
                runs += 1
                said = "" if asked.no_promtool else rules_differ(case, asked.promtool)
                told = ["rules differ: " + " ".join(said.split())[:300]] if said else []
                own, other = own_firing(case), prometheus_firing(case)
                intervals += sum(map(len, own.values()))
                for one in sorted(own.keys() | other.keys()):
                    told += [
                        f"{one[0]} {one[1]}: {why}"
                        for why in disagreements(own.get(one, []), other.get(one, []), hold=BY_NAME[one[0]].hold_seconds)
                    ]
                name = path.name.partition(".")[0]
                for (road, firing), engine in product((("kvwatch", own), ("Prometheus", other)), engines_of(labels[name])):
                    pages = [page for one, times in firing.items() if one[:2] == (STORM, engine) for page in times]
                    mine = [span for span in labels[name] if str(span.get("engine", "0")) == engine]
                    told += [f"{road} {engine}: {why}" for why in faults_of_pages(pages, mine)]
                for line in told:
                    found[re.sub(r"[-+\d.].*", "", line.partition(": ")[2]).strip() or "rules"] += 1
                    print(f"{name} {lost:.0%} #{seed}: {line}", flush=True)  # noqa: T201
                for cached in (polls, scrapes, expected):
                    cached.cache_clear()
    print(f"{runs} runs, {intervals} alerts, found: {dict(found)}")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
