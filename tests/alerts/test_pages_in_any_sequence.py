"""Storms that come, go and are cut short in any order, seen through polls that get lost: no storm page beside any other state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from kvwatch.alerts.times import EVIDENCE_SECONDS, at_least
from kvwatch.assess import Judge
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.model import EngineConfig, EngineId, FailureReason, Scrape, ScrapeFailure, Snapshot, State

ENGINE = EngineId("demo-8b", "0")
POOL = EngineConfig(kv_cache_size_tokens=100_000, block_size=16)

CALM = {"running": 6.0, "waiting": 0.0, "kv_usage": 0.4, "tokens": 60.0, "finished": 0.5, "preemptions": 0.0}
PHASES = (
    CALM,
    CALM | {"kv_usage": 0.97},
    CALM | {"running": 0.0, "kv_usage": 0.0, "tokens": 0.0, "finished": 0.0},
    CALM | {"running": 9.0, "waiting": 20.0, "kv_usage": 0.98, "preemptions": 0.8},
    CALM | {"running": 4.0, "kv_usage": 0.95, "finished": 0.1, "preemptions": 0.1},
    CALM | {"running": 9.0, "waiting": 20.0, "kv_usage": 0.85, "preemptions": 0.4, "finished": 3.0},
    CALM | {"waiting": 8.0, "preemptions": 0.5},
    CALM | {"running": 8.0, "waiting": 12.0, "kv_usage": 0.5},
    CALM | {"running": 9.0, "waiting": 20.0, "kv_usage": 0.98, "tokens": 0.0, "finished": 0.0},
)
"""Calm, full, at rest, a storm, one of few, one that finishes much, preemptions in a roomy cache, slots, a freeze. Counters per second."""


def polls(seed: int, interval: float, lost: float) -> Iterator[Scrape | ScrapeFailure]:
    """An hour at most of phases of 5 to 200 seconds; now and then the process starts anew, and a share of the polls is *lost*."""
    chance = random.Random(seed)  # noqa: S311 - noise, not a secret
    counters, start, at, until, phase = dict.fromkeys(("tokens", "finished", "preemptions"), 0.0), 5e8, 0.0, 0.0, CALM
    for _ in range(min(160, int(3600 / interval))):
        if at >= until:
            phase, until = chance.choice(PHASES), at + chance.uniform(5.0, 200.0)
            if chance.random() < 0.1:
                counters, start = dict.fromkeys(counters, 0.0), 1e9 + at
        counters = {name: count + round(interval * phase[name] * chance.uniform(0.5, 1.5)) for name, count in counters.items()}
        if chance.random() < lost:
            yield ScrapeFailure(at, FailureReason.TIMEOUT, "no answer")
        else:
            snapshot = Snapshot(
                ENGINE,
                at,
                config=POOL,
                running=phase["running"],
                waiting=max(0.0, phase["waiting"] + chance.choice((-1.0, 0.0, 0.0, 1.0))),
                kv_usage=min(1.0, phase["kv_usage"] * chance.uniform(0.9, 1.02)),
                preemptions=counters["preemptions"],
                finished=counters["finished"],
                generation_tokens=counters["tokens"],
                prompt_tokens=4 * counters["tokens"],
            )
            yield Scrape(at, (snapshot,), unix=1e9 + at, process_start_time=start)
        at += interval


def told(seed: int, interval: float, lost: float) -> list[tuple[State, bool]]:
    """At each poll the state, and whether the storm page stands."""
    judge, said = Judge(Policy(), KnownConfig(), interval), []
    for poll in polls(seed, interval, lost):
        found = judge.failed(poll) if isinstance(poll, ScrapeFailure) else judge.scraped(poll)
        (one,) = found.assessments
        said.append((one.verdict.state, any(alert.name == "PreemptionStorm" for alert in one.alerts)))
    return said


@pytest.mark.parametrize("interval", [1.0, 5.0, 15.0, 60.0])
@pytest.mark.parametrize("lost", [0.0, 0.05, 0.2, 0.5])
def test_a_storm_page_never_stands_beside_another_state(lost: float, interval: float) -> None:
    """Nor does it begin beside unknown: there one that stood goes on until what was last seen is too old to go by."""
    paged = False
    for seed in range(8):
        before, unseen = False, 0.0
        for state, pages in told(seed, interval, lost):
            unseen = unseen + interval if state is State.UNKNOWN else 0.0
            assert not pages or state is State.KV_BOUND or (state is State.UNKNOWN and before)
            assert not pages or unseen <= at_least(EVIDENCE_SECONDS, interval) + interval
            before, paged = pages, paged or pages
    assert paged


@pytest.mark.parametrize("interval", [1.0, 5.0, 15.0])
def test_a_state_does_not_flicker_in_any_sequence(interval: float) -> None:
    """It changes at most three times for each phase: into it, out of a moment that looked otherwise, and on."""
    for seed in range(8):
        said = told(seed, interval, 0.0)
        seconds = len(said) * interval
        changes = sum(before is not after for (before, _), (after, _) in pairwise(said))
        assert changes <= 3 * (seconds / 60 + 2)
