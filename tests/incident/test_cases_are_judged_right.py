"""Servers on which kvwatch was wrong once, and fresh ones of the same kinds; and the present tense, which needs no labels."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from playing import decimated, replay
from test_recordings_are_judged_right import LABELS as RECORDED
from test_recordings_are_judged_right import RECORDINGS, Said, Score, judge_spans

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.errors import ScrapeError
from kvwatch.incident.recording import Entry, Reader
from kvwatch.incident.replay import ReplayRow
from kvwatch.model import Snapshot
from kvwatch.poller.vllm import parse_scrape

CASES: Final = Path(__file__).parent.parent / "data" / "cases"
LABELS: Final = json.loads((CASES / "labels.json").read_text())
PATHS: Final = {name: CASES / f"{name}.jsonl.xz" for name in LABELS} | {name: RECORDINGS / f"{name}.jsonl.xz" for name in RECORDED}
OF_ONE_ENGINE: Final = sorted(PATHS.keys() - {"dp2_one_starved", "stats_disabled"})


@lru_cache
def entries_of(name: str) -> list[Entry]:
    with Reader(PATHS[name], pytest.fail) as reader:
        return list(reader)


@lru_cache
def rows_of(name: str, interval: float) -> list[ReplayRow]:
    return list(replay(decimated(entries_of(name), interval), "vllm", judge_for(Settings(), interval=interval)))


def said_of(name: str, interval: float) -> list[Said]:
    origin = entries_of(name)[0].t
    return [
        Said(
            row.t - origin,
            row.assessment.verdict.state,
            row.assessment.verdict.cause,
            any(alert.name == "PreemptionStorm" for alert in row.assessment.alerts),
        )
        for row in rows_of(name, interval)
    ]


@pytest.fixture(scope="module", params=[1.0, 5.0, 15.0], ids=lambda interval: f"every {interval:g}s")
def at_interval(request) -> tuple[float, Score]:
    score = Score()
    for name, spans in LABELS.items():
        judge_spans(score, name, spans, said_of(name, request.param))
    return request.param, score


def test_state_and_cause_are_right(at_interval):
    _, score = at_interval
    assert score.right / (score.right + len(score.wrong)) >= 0.98, score.wrong
    assert score.causes_right / (score.causes_right + len(score.causes_wrong)) >= 0.98, score.causes_wrong
    assert score.flaps / score.seconds * 600 <= 0.5


@pytest.mark.parametrize("interval", [10.0, 20.0])
def test_a_batch_that_blocks_keep_small_is_not_held_by_slots_however_rarely_it_is_polled(interval):
    """Some polls of every second or fourth moment never find the largest batch again."""
    score = Score()
    judge_spans(score, "report_wide_full", LABELS["report_wide_full"], said_of("report_wide_full", interval))
    assert score.wrong == []
    assert score.right > 10


def test_every_storm_pages_and_nothing_else_does(at_interval):
    _, score = at_interval
    assert len(score.pages) == 7
    assert max(score.pages) <= 90.0
    assert score.false_pages == []


@lru_cache
def seen_in(name: str) -> list[tuple[float, Snapshot | None]]:
    return [(entry.t, snapshot_in(entry)) for entry in entries_of(name)]


def snapshot_in(entry: Entry) -> Snapshot | None:
    try:
        return None if entry.body is None else parse_scrape(entry.body, entry.t).snapshots[0]
    except ScrapeError:
        return None


def contradiction(state: str, cause: str, seen: list[Snapshot]) -> str | None:
    """Why every number of *seen* says something else than the verdict; ``None`` where one of them may agree."""
    queues = [(one.waiting or 0.0) - (one.waiting_deferred or 0.0) for one in seen]
    preempted = (seen[-1].preemptions or 0.0) - (seen[0].preemptions or 0.0)
    if state == "kv_bound" and not any(queues) and preempted <= 0 and all((one.kv_usage or 0.0) < 0.7 for one in seen):
        return "no queue, no preemption, a cool cache"
    if state == "healthy" and all(queue >= 1 for queue in queues):
        return "a queue that never emptied"
    if cause == "idle" and all((one.running or 0.0) + (one.waiting or 0.0) > 0 for one in seen):
        return "there is work"
    tokens = [one.generation_tokens or 0.0 for one in seen if one.at > seen[-1].at - 6]
    if cause == "stalled" and len(tokens) > 1 and all(after > before for before, after in pairwise(tokens)):
        return "tokens come"
    return None


@pytest.mark.parametrize("interval", [1.0, 5.0, 15.0])
def test_hardly_a_verdict_is_contradicted_by_every_number_of_the_last_seconds(interval):
    patience, judged, contradicted, stretches = max(12.0, 2.5 * interval), 0, [], []
    for name in OF_ONE_ENGINE:
        seen, since = seen_in(name), None
        for row in rows_of(name, interval):
            verdict = row.assessment.verdict
            lately = [snapshot for t, snapshot in seen if row.t - patience <= t <= row.t]
            if verdict.state == "unknown" or row.t - seen[0][0] < patience or None in lately or not lately:
                since = None
                continue
            judged += 1
            why = contradiction(verdict.state, verdict.cause, [one for one in lately if one is not None])
            since = None if why is None else since or row.t
            if why is not None and since is not None:
                contradicted.append(f"{name} at {row.t - seen[0][0]:.0f} s: {verdict.state}, but {why}")
                stretches.append(row.t - since)
    assert len(contradicted) <= 0.005 * judged, contradicted
    assert max(stretches, default=0.0) <= 10.0


def test_no_page_stands_beside_a_healthy_state():
    beside = {
        (name, str(row.assessment.verdict.cause), alert.name)
        for name in PATHS
        for row in rows_of(name, 5.0)
        for alert in row.assessment.alerts
        if alert.name in ("PreemptionStorm", "EngineStalled") and row.assessment.verdict.state == "healthy"
    }
    assert beside == set()
