"""The same classifier over the past: a recording goes in, one row per scrape and engine comes out."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Final

from kvwatch.assess import Judge, Judgement, judge_for
from kvwatch.config.policy import KnownConfig
from kvwatch.config.settings import Settings
from kvwatch.errors import KVWatchError, ScrapeError
from kvwatch.incident.recording import Decimator, Entry
from kvwatch.model import Alert, Assessment, FailureReason, ScrapeFailure
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.vllm import parse_scrape
from kvwatch.runs.run import Run


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """What kvwatch said of one engine at one recorded scrape."""

    t: float
    target: str
    assessment: Assessment
    target_alerts: tuple[Alert, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The line of ``replay --format jsonl``."""
        verdict, signals = self.assessment.verdict, self.assessment.signals
        return {
            "t": self.t,
            "target": self.target,
            "model_name": verdict.engine.model_name if verdict.engine else None,
            "engine": verdict.engine.engine if verdict.engine else None,
            "state": verdict.state,
            "cause": verdict.cause,
            "preemption_ratio": {
                "fast": signals.fast.preemption_ratio if signals else None,
                "slow": signals.slow.preemption_ratio if signals else None,
            },
            "kv_usage": signals.kv_usage if signals else None,
            "running": signals.running if signals else None,
            "waiting": signals.waiting if signals else None,
            "alerts": [alert.name for alert in (*self.assessment.alerts, *self.target_alerts)],
        }


def rows_of(entry: Entry, target: str, judge: Judge, memory: LabelMemory | None = None) -> Iterator[ReplayRow]:
    """What *judge* says after one more recorded scrape; *memory* is of the same target."""
    judgement = _judge(entry, judge, memory)
    for assessment in judgement.assessments:
        yield ReplayRow(entry.t, target, assessment, judgement.alerts)


def _judge(entry: Entry, judge: Judge, memory: LabelMemory | None) -> Judgement:
    if entry.body is None:
        return judge.failed(_failure(entry))
    try:
        return judge.scraped(parse_scrape(entry.body, entry.t, entry.t, memory))
    except ScrapeError as error:
        return judge.failed(ScrapeFailure(entry.t, error.reason, error.detail))


def _failure(entry: Entry) -> ScrapeFailure:
    reason, _, detail = (entry.error or "").partition(":")
    try:
        return ScrapeFailure(entry.t, FailureReason(reason.strip()), detail.strip() or "as recorded")
    except ValueError:
        return ScrapeFailure(entry.t, FailureReason.INTERNAL, entry.error or "no reason was recorded")


_SLOWEST_GUESS: Final = 60.0
"""Seconds; scrapes further apart are taken for a recorder with gaps, unless the interval is given."""


@dataclass(frozen=True, slots=True)
class Replayer:
    """Judges scrapes of one or more targets, each with a judge of its own, in the order of the scrapes.

    *interval* (seconds) takes one scrape in so long; ``None`` takes all. *complain* is told once what scrapes far apart cannot show.
    """

    settings: Settings
    known: KnownConfig
    interval: float | None
    complain: Callable[[str], None]
    keep: Callable[[str, Entry], None]
    """Is given each scrape that is judged, with the name of its target."""
    baseline: Run | None = None
    """What the settings' baseline file holds."""

    def rows(self, entries: Iterator[tuple[str, Entry]]) -> Iterator[ReplayRow]:
        """One row per scrape and engine. Raises what *entries* raises, after the rows before."""
        first, rest = _look_ahead(entries)
        spacing = max(self.interval or 0.0, _spacing(first) or self.settings.poll.interval)
        if remark := coarse(spacing, self.settings):
            self.complain(remark)
        judges: dict[str, Judge] = {}
        memories: dict[str, LabelMemory] = defaultdict(LabelMemory)
        decimators: dict[str, Decimator] = {}
        for target, entry in chain(first, rest):
            if self.interval is not None and not decimators.setdefault(target, Decimator(self.interval)).wants(entry.t):
                continue
            self.keep(target, entry)
            if target not in judges:
                slowest = min(spacing, self.interval or _SLOWEST_GUESS)
                judges[target] = judge_for(self.settings, self.known, interval=slowest, baseline=self.baseline)
            yield from rows_of(entry, target, judges[target], memories[target])


_COARSE_SECONDS: Final = 15.0
"""Time between scrapes from which on it is said what they cannot show: three times the daemon's own."""


def coarse(spacing: float, settings: Settings) -> str | None:
    """What scrapes *spacing* seconds apart do not show; ``None`` where they are close enough."""
    if round(spacing) < _COARSE_SECONDS:  # a poll a few milliseconds early is as coarse
        return None
    unseen = ["a queue or a full cache that comes and goes between two of them"]
    if spacing > settings.thresholds.stall:
        unseen.append("a stall shorter than that")
    if spacing > settings.window.fast / 2:
        unseen.append("the beginning or end of a storm more exactly than to two of them")
    return f"scrapes are {round(spacing)} s apart and do not show {', or '.join(unseen)}"


_LOOK_AHEAD: Final = 100
"""Scrapes looked at to see how often a recorder asked."""


def _look_ahead(entries: Iterator[tuple[str, Entry]]) -> tuple[list[tuple[str, Entry]], Iterator[tuple[str, Entry]]]:
    """The first scrapes and the others. A source that breaks off among the first does so after them, not before."""
    first: list[tuple[str, Entry]] = []
    try:
        first.extend(islice(entries, _LOOK_AHEAD))
    except KVWatchError as error:
        return first, _broken_off(error)
    return first, entries


def _broken_off(error: KVWatchError) -> Iterator[tuple[str, Entry]]:
    raise error
    yield


def _spacing(entries: Sequence[tuple[str, Entry]]) -> float | None:
    """How often one target was asked: the median time between scrapes, where there are two of one."""
    times: dict[str, list[float]] = {}
    for target, entry in entries:
        times.setdefault(target, []).append(entry.t)
    gaps = [after - before for own in times.values() for before, after in pairwise(own) if after > before]
    return statistics.median(gaps) if gaps else None
