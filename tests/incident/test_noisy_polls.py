"""The labelled recordings, polled badly: late, with holes, with answers that come twice: judged as well as polled well."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from playing import decimated, replay
from test_recordings_are_judged_right import LABELS, RECORDINGS, Said, Score, first_scrape, judge_spans, said_of

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.incident.recording import Entry, Reader
from kvwatch.model import State

INTERVAL = 5.0


def recording(name: str) -> list[Entry]:
    with Reader(RECORDINGS / f"{name}.jsonl.xz", pytest.fail) as reader:
        return list(reader)


def polled(entries: list[Entry]) -> list[Entry]:
    return list(decimated(iter(entries), INTERVAL))


def late_and_early(entries: list[Entry]) -> list[Entry]:
    """Up to 1.5 s off the beat."""
    chance = random.Random(7)  # noqa: S311 - noise, not a secret
    begin, left = entries[0].t, iter(entries)
    due = (begin + beat * INTERVAL + chance.uniform(-1.5, 1.5) for beat in range(1, 1000))
    return [entries[0], *(found for moment in due if (found := next((e for e in left if e.t >= moment), None)) is not None)]


def every_third_dropped(entries: list[Entry]) -> list[Entry]:
    return [entry for place, entry in enumerate(polled(entries)) if place % 3 != 2]


def two_failures_in_ten(entries: list[Entry]) -> list[Entry]:
    return [
        replace(entry, body=None, error="timeout: no whole answer within 4 s") if place % 10 in (7, 8) else entry
        for place, entry in enumerate(polled(entries))
    ]


def ten_second_stalls(entries: list[Entry]) -> list[Entry]:
    """Two polls are missing every 40 s."""
    return [entry for entry in polled(entries) if not 20 < (entry.t - entries[0].t) % 40 <= 30]


def twice_within_a_millisecond(entries: list[Entry]) -> list[Entry]:
    return [made for entry in polled(entries) for made in (entry, replace(entry, t=entry.t + 0.001))]


def every_second_answer_from_a_cache(entries: list[Entry]) -> list[Entry]:
    good = polled(entries)
    return [replace(entry, body=good[place - place % 2].body, error=good[place - place % 2].error) for place, entry in enumerate(good)]


NOISE = [
    late_and_early,
    every_third_dropped,
    two_failures_in_ten,
    ten_second_stalls,
    twice_within_a_millisecond,
    every_second_answer_from_a_cache,
]


def said(name: str, noisy: list[Entry], engine: str) -> list[Said]:
    """What is said of the scrapes that did not fail: those that did are unknown, by contract."""
    failed = {entry.t for entry in noisy if entry.error is not None and "timeout" in entry.error}
    return [
        Said(
            row.t - first_scrape(name),
            row.assessment.verdict.state,
            row.assessment.verdict.cause,
            any(alert.name == "PreemptionStorm" for alert in row.assessment.alerts),
        )
        for row in replay(noisy, "vllm", judge_for(Settings(), interval=INTERVAL))
        if row.t not in failed and (row.assessment.verdict.engine is None or row.assessment.verdict.engine.engine == engine)
    ]


@pytest.mark.parametrize("noise", NOISE)
def test_bad_polls_are_judged_as_well_as_good_ones(noise):
    score, causes, paging = Score(), set(), set()
    for name, spans in LABELS.items():
        noisy = noise(recording(name))
        for engine in sorted({span["engine"] for span in spans}):
            found = said(name, noisy, engine)
            judge_spans(score, name, [span for span in spans if span["engine"] == engine], found)
            causes |= {(name, str(one.cause)) for one in found}
            paging |= {name for one in found if one.paging} - {name for one in said_of(name, INTERVAL, engine) if one.paging}
    assert score.right / (score.right + len(score.wrong)) >= 0.97, score.wrong
    assert score.causes_right / (score.causes_right + len(score.causes_wrong)) >= 0.97, score.causes_wrong
    assert score.flaps / score.seconds * 600 <= 1.0
    assert max(score.pages) <= 90.0
    assert paging == set()
    assert {name for name, cause in causes if cause == "stalled"} == {"freeze_loaded"}
    assert not {name for name, cause in causes if cause == "ambiguous"}


def test_a_body_that_is_replayed_is_no_stall_before_its_time():
    """One busy body again and again: for fifteen seconds it may be the step of the prompt just taken, then nothing moves."""
    busy = next(
        entry
        for entry in recording("healthy_busy")
        if entry.body is not None and b'num_requests_running{engine="0",model_name="demo-8b"} 7.0' in entry.body
    )
    before = [entry for entry in recording("healthy_busy") if entry.t < busy.t]
    again = [replace(busy, t=busy.t + seconds) for seconds in range(1, 21)]
    rows = list(replay([*before, busy, *again], "vllm", judge_for(Settings(), interval=1.0)))[-20:]
    stalled = [row.t - busy.t for row in rows if row.assessment.verdict.cause == "stalled"]
    assert stalled == [15, 16, 17, 18, 19, 20]
    assert sum(a.assessment.verdict.state is not b.assessment.verdict.state for a, b in pairwise(rows)) == 1
    assert rows[-1].assessment.verdict.state is State.COMPUTE_BOUND
