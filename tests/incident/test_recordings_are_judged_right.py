"""The bars of the design on recordings of a real vLLM, whose truth is an intervention and not a threshold."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from playing import decimated, replay

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.incident.recording import Reader
from kvwatch.incident.replay import ReplayRow
from kvwatch.model import State

RECORDINGS: Final = Path(__file__).parent.parent / "data" / "recordings"
LABELS: Final = json.loads((RECORDINGS / "labels.json").read_text())
SETTLE: Final = 20.0
"""Seconds it may take to change one's mind after the truth has changed."""
GRACE: Final = 60.0
"""Seconds a page may outlive its storm."""


@dataclass
class Score:
    """What the labels say of the rows."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    causes_right: int = 0
    causes_wrong: list[str] = field(default_factory=list)
    flaps: int = 0
    seconds: float = 0.0
    onsets: list[float] = field(default_factory=list)
    pages: list[float] = field(default_factory=list)
    false_pages: list[str] = field(default_factory=list)


@lru_cache
def rows_of(name: str, interval: float) -> list[ReplayRow]:
    with Reader(RECORDINGS / f"{name}.jsonl.xz", pytest.fail) as reader:
        return list(replay(decimated(iter(reader), interval), "vllm", judge_for(Settings(), interval=interval)))


@lru_cache
def first_scrape(name: str) -> float:
    with Reader(RECORDINGS / f"{name}.jsonl.xz", pytest.fail) as reader:
        return next(iter(reader)).t


@dataclass(frozen=True)
class Said:
    t: float
    state: str
    cause: str
    paging: bool


def said_of(name: str, interval: float, engine: str) -> list[Said]:
    origin = first_scrape(name)
    mine = (r for r in rows_of(name, interval) if r.assessment.verdict.engine is None or r.assessment.verdict.engine.engine == engine)
    return [
        Said(
            row.t - origin,
            row.assessment.verdict.state,
            row.assessment.verdict.cause,
            any(alert.name == "PreemptionStorm" for alert in row.assessment.alerts),
        )
        for row in mine
    ]


def scored(interval: float) -> Score:
    score = Score()
    for name, spans in LABELS.items():
        for engine in sorted({span["engine"] for span in spans}):
            judge_spans(score, name, [span for span in spans if span["engine"] == engine], said_of(name, interval, engine))
    return score


def judge_spans(score: Score, name: str, spans: list[dict], said: list[Said]) -> None:
    before = None
    for span in spans:
        start = span["from"] + (SETTLE if span["state"] != before else 0.0)
        before = span["state"]
        inside = [one for one in said if start <= one.t < span["to"]]
        score.seconds += max(0.0, span["to"] - start)
        score.flaps += sum(a.state != b.state for a, b in pairwise(inside))
        for one in inside:
            judge_moment(score, f"{name} at {one.t:.0f} s", span, one)
        if span["state"] in (State.KV_BOUND, State.COMPUTE_BOUND):
            score.onsets.append(first_after(span, (one.t for one in said if one.state == span["state"])))
        if span.get("storm"):
            score.pages.append(first_after(span, (one.t for one in said if one.paging)))
        if span["state"] != State.KV_BOUND:
            excused = [(bound["from"], bound["to"] + GRACE) for bound in spans if bound["state"] == State.KV_BOUND]
            score.false_pages += [
                f"{name} at {one.t:.0f} s"
                for one in said
                if one.paging and span["from"] <= one.t < span["to"] and not any(a <= one.t < b for a, b in excused)
            ]


def judge_moment(score: Score, where: str, span: dict, one: Said) -> None:
    if one.state != span["state"]:
        score.wrong.append(f"{where}: {one.state} {one.cause}, not {span['state']}")
        return
    score.right += 1
    if causes := span.get("cause"):
        if one.cause in ([causes] if isinstance(causes, str) else causes):
            score.causes_right += 1
        else:
            score.causes_wrong.append(f"{where}: {one.cause}, not {causes}")


def first_after(span: dict, moments: Iterator[float]) -> float:
    """Seconds from the start of a span to the first of these moments inside it."""
    return next((moment - span["from"] for moment in moments if span["from"] <= moment < span["to"]), float("inf"))


@pytest.fixture(scope="module", params=[1.0, 5.0, 15.0], ids=lambda interval: f"every {interval:g}s")
def at_interval(request) -> tuple[float, Score]:
    return request.param, scored(request.param)


def test_the_state_is_right(at_interval):
    _, score = at_interval
    assert score.right / (score.right + len(score.wrong)) >= 0.97, score.wrong


def test_the_cause_is_right(at_interval):
    _, score = at_interval
    assert score.causes_right / (score.causes_right + len(score.causes_wrong)) >= 0.97, score.causes_wrong


def test_it_does_not_flap(at_interval):
    _, score = at_interval
    assert score.flaps / score.seconds * 600 <= 1.0


def test_a_bound_phase_is_noticed_within_15_seconds_in_the_median(at_interval):
    interval, score = at_interval
    assert statistics.median(score.onsets) <= max(15.0, interval)


def test_every_storm_pages_within_90_seconds_and_nothing_else_does(at_interval):
    _, score = at_interval
    assert len(score.pages) == 10
    assert max(score.pages) <= 90.0
    assert score.false_pages == []


@pytest.mark.parametrize("name", ["kv_storm", "storm_mfu", "dp2_one_starved", "restart_under_storm"])
def test_a_page_never_contradicts_the_state(name):
    """While it pages the engine is kv_bound; only when its clients have left may it be idle, or not be seen yet."""
    paging = [
        row.assessment.verdict for row in rows_of(name, 5.0) if any(alert.name == "PreemptionStorm" for alert in row.assessment.alerts)
    ]
    assert {str(verdict.cause) for verdict in paging if verdict.state is not State.KV_BOUND} <= {"idle", "unreachable", "warming_up"}
    assert any(verdict.state is State.KV_BOUND for verdict in paging)
