"""Every recording with 0, 5, 20 and 50 % of its polls lost: a storm is paged, once, and never where there is none."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from playing import decimated
from storms import Firing, engines_of, faults_of_pages, labelled

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.errors import ScrapeError
from kvwatch.incident.recording import Reader
from kvwatch.model import FailureReason, Scrape, ScrapeFailure, State
from kvwatch.poller.vllm import parse_scrape

RECORDINGS: Final = Path(__file__).resolve().parents[1] / "data" / "recordings"
LABELS: Final = labelled(RECORDINGS)
INTERVAL: Final = 5.0


@cache
def polled(name: str) -> tuple[Scrape | ScrapeFailure, ...]:
    with Reader(RECORDINGS / f"{name}.jsonl.xz", pytest.fail) as entries:
        return tuple(answer(entry.body, entry.error, entry.t) for entry in decimated(iter(entries), INTERVAL))


def answer(body: bytes | None, error: str | None, at: float) -> Scrape | ScrapeFailure:
    if body is None:
        return ScrapeFailure(at, FailureReason((error or "").partition(":")[0]), "as recorded")
    try:
        return parse_scrape(body, at)
    except ScrapeError as fault:
        return ScrapeFailure(at, fault.reason, fault.detail)


def pages(name: str, engine: str, lost: float, seed: int) -> Firing:
    """The storm pages of one engine; fails where one stands beside a state that says something else."""
    chance, judge = random.Random(seed), judge_for(Settings(), interval=INTERVAL)  # noqa: S311 - noise, not a secret
    start, firing, since = polled(name)[0].at, [], None
    for one in polled(name):
        failure = ScrapeFailure(one.at, FailureReason.TIMEOUT, "lost") if chance.random() < lost else one
        judged = judge.failed(failure) if isinstance(failure, ScrapeFailure) else judge.scraped(failure)
        mine = [a for a in judged.assessments if a.verdict.engine is not None and a.verdict.engine.engine == engine]
        storms = [alert for a in mine for alert in a.alerts if alert.name == "PreemptionStorm"]
        assert not storms or mine[0].verdict.state in (State.KV_BOUND, State.UNKNOWN)
        if storms and since is None:
            since = one.at - start
        elif not storms and since is not None:
            firing.append((since, one.at - start))
            since = None
    return firing if since is None else [*firing, (since, polled(name)[-1].at - start)]


CASES: Final = [(name, engine) for name, spans in sorted(LABELS.items()) for engine in engines_of(spans)]


@pytest.mark.parametrize("lost", [0.0, 0.05, 0.2, 0.5])
@pytest.mark.parametrize(("name", "engine"), CASES)
def test_a_storm_is_paged_once_and_nothing_else_is(name: str, engine: str, lost: float) -> None:
    spans = [span for span in LABELS[name] if str(span.get("engine", "0")) == engine]
    for seed in range(5 if lost else 1):
        assert list(faults_of_pages(pages(name, engine, lost, seed), spans)) == [], seed
