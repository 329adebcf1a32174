"""The labelled recordings as other vLLM versions, front ends and distributions would have exposed them: judged as well, or nearly."""

from __future__ import annotations

from functools import lru_cache

import pytest
from exposition_eras import ERAS, Era, Sample, parse
from playing import decimated, replay
from test_recordings_are_judged_right import LABELS, RECORDINGS, Said, Score, first_scrape, judge_spans

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.incident.recording import Entry, Reader

INTERVAL = 5.0


def without_preemptions(span: dict) -> dict:
    """Where preemptions are not counted, a storm is a queue in front of a full cache, and cannot page."""
    cause = "admission" if span.get("cause") == "preempting" else span.get("cause")
    return span | {"cause": cause, "storm": False}


@lru_cache
def parsed(name: str) -> list[tuple[Entry, list[Sample]]]:
    with Reader(RECORDINGS / f"{name}.jsonl.xz", pytest.fail) as reader:
        return [(entry, parse(entry.body.decode()) if entry.body else []) for entry in decimated(iter(reader), INTERVAL)]


def said_in(era: Era, name: str, engine: str) -> list[Said]:
    entries = (Entry(entry.t, era.expose(samples) if entry.body else None, entry.error) for entry, samples in parsed(name))
    rows = list(replay(entries, "vllm", judge_for(Settings(), interval=INTERVAL)))
    return [
        Said(
            row.t - first_scrape(name),
            row.assessment.verdict.state,
            row.assessment.verdict.cause,
            any(alert.name == "PreemptionStorm" for alert in row.assessment.alerts),
        )
        for row in rows
        if row.assessment.verdict.engine is None or row.assessment.verdict.engine.engine == engine
    ]


@pytest.fixture(scope="module", params=list(ERAS))
def era(request) -> Era:
    return ERAS[request.param]


@pytest.fixture(scope="module")
def score(era) -> Score:
    score = Score()
    for name, labelled in LABELS.items():
        spans = labelled if era.counts_preemptions else [without_preemptions(span) for span in labelled]
        engines = sorted({span["engine"] for span in spans})
        for engine in engines if era.many_engines or len(engines) == 1 else ():
            judge_spans(score, name, [span for span in spans if span["engine"] == engine], said_in(era, name, engine))
    return score


def test_the_state_is_right_in_every_era(score):
    assert score.right / (score.right + len(score.wrong)) >= 0.97, score.wrong


def test_the_cause_is_right_in_every_era(score):
    assert score.causes_right / (score.causes_right + len(score.causes_wrong)) >= 0.97, score.causes_wrong


def test_no_era_makes_it_flap(score):
    assert score.flaps / score.seconds * 600 <= 1.0


def test_every_storm_pages_in_every_era_and_nothing_else_does(era, score):
    assert len(score.pages) == (0 if not era.counts_preemptions else 10 if era.many_engines else 8)
    assert max(score.pages, default=0.0) <= 90.0
    assert score.false_pages == []
