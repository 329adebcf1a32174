"""What happened in a replay, for a post-mortem: how long each state held, the worst of it, when which alert fired, what was advised. Pure.

Times are unix seconds. A span ends where the next verdict begins, or one spacing after its last scrape.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from kvwatch.config.settings import Settings
from kvwatch.incident.replay import ReplayRow, coarse
from kvwatch.model import Cause, Change, EngineId, State


@dataclass(frozen=True, slots=True)
class ReportSample:
    """One engine at one scrape, as far as its numbers are known."""

    t: float
    state: State
    cause: Cause
    kv_usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    preemption_ratio: float | None = None
    recompute_ratio: float | None = None
    generation_tokens_per_second: float | None = None
    time_to_first_token: float | None = None
    """P95 over the slow window, seconds; so are the next two, the last at P99."""
    inter_token_latency: float | None = None
    e2e_latency: float | None = None


@dataclass(frozen=True, slots=True)
class ReportChange:
    """The verdict changed at *t*, and held until *until*."""

    t: float
    until: float
    state: State
    cause: Cause
    evidence: tuple[str, ...]
    advice: Change | None


@dataclass(frozen=True, slots=True)
class AlertSpan:
    """An alert fired from *t* until *until*."""

    name: str
    t: float
    until: float


@dataclass(slots=True)
class EngineReport:
    """Everything a report says of one engine."""

    target: str
    engine: EngineId | None
    samples: list[ReportSample] = field(default_factory=list)
    changes: list[ReportChange] = field(default_factory=list)
    alerts: list[AlertSpan] = field(default_factory=list)
    naive: list[AlertSpan] = field(default_factory=list)
    """When `NAIVE_USAGE` for `NAIVE_SECONDS` would have fired."""
    spacing: float = 0.0
    """Median time between scrapes, seconds."""
    remark: str | None = None
    """What scrapes so far apart do not show; ``None`` where they are close enough."""

    @property
    def name(self) -> str:
        """Target and engine in words."""
        return self.target if self.engine is None else f"{self.target}, engine {self.engine.engine} of {self.engine.model_name}"

    def seconds_in(self, state: State) -> float:
        """Seconds in that state."""
        return sum(change.until - change.t for change in self.changes if change.state is state)

    @property
    def worst(self) -> ReportChange | None:
        """The longest time in a bound state, preempting before others; ``None`` where nothing bound it."""
        bound = [change for change in self.joined() if change.state in (State.KV_BOUND, State.COMPUTE_BOUND)]
        return max(bound, key=lambda change: (change.state is State.KV_BOUND, change.until - change.t), default=None)

    def joined(self) -> Iterator[ReportChange]:
        """The changes of state alone, causes put together; the cause and evidence are those of the longest part."""
        part: list[ReportChange] = []
        for change in self.changes:
            if part and part[0].state is not change.state:
                yield _join(part)
                part = []
            part.append(change)
        if part:
            yield _join(part)

    def highest(self, name: str, start: float, end: float) -> float | None:
        """The highest value of a sample's field between two times; ``None`` where it was never known."""
        known = [value for one in self.samples if start <= one.t <= end and (value := getattr(one, name)) is not None]
        return max(known, default=None)


def _join(part: Sequence[ReportChange]) -> ReportChange:
    longest = max(part, key=lambda change: change.until - change.t)
    return ReportChange(part[0].t, part[-1].until, longest.state, longest.cause, longest.evidence, longest.advice)


def build_report(rows: Iterable[ReplayRow], settings: Settings) -> list[EngineReport]:
    """A report for each engine of *rows* (in order of time, judged by *settings*), by target and engine."""
    builders: dict[tuple[str, EngineId | None], _Builder] = {}
    for row in rows:
        key = (row.target, row.assessment.verdict.engine)
        builders.setdefault(key, _Builder(row.target, key[1])).add(row)
    # Before the first engine of a target is known its rows carry none; they say nothing once there is one.
    named = {target for target, engine in builders if engine is not None}
    found = [builder.end(settings) for (target, engine), builder in builders.items() if engine is not None or target not in named]
    return sorted(found, key=lambda report: (report.target, report.engine or EngineId("", "")))


NAIVE_USAGE: Final = 0.95
NAIVE_SECONDS: Final = 300.0
"""The rule most people begin with, to compare against: KV cache usage above 95 % for five minutes without a break."""


class _Builder:
    """Puts one engine's report together."""

    def __init__(self, target: str, engine: EngineId | None) -> None:
        self._report = EngineReport(target, engine)
        self._open: ReportChange | None = None
        self._firing: dict[str, tuple[float, float]] = {}
        self._above_since: float | None = None
        self._naive_since: float | None = None

    def add(self, row: ReplayRow) -> None:
        """Take in the next row."""
        self._change(row)
        self._report.samples.append(_sample(row))
        self._alerts(row)
        self._naive(row)

    def end(self, settings: Settings) -> EngineReport:
        """The report, everything that is still open closed at its last scrape."""
        report = self._report
        gaps = [after.t - before.t for before, after in pairwise(report.samples)]
        report.spacing = statistics.median(gaps) if gaps else 0.0
        report.remark = coarse(report.spacing, settings)
        end = report.samples[-1].t + report.spacing
        if self._open is not None:
            report.changes.append(_until(self._open, end))
        report.alerts += [AlertSpan(name, start, last) for name, (start, last) in self._firing.items()]
        report.alerts.sort(key=lambda alert: (alert.t, alert.name))
        if self._naive_since is not None:
            report.naive.append(AlertSpan("usage", self._naive_since, end))
        return report

    def _change(self, row: ReplayRow) -> None:
        verdict, advice = row.assessment.verdict, row.assessment.advice
        now = self._open
        if now is not None and _alike((now.state, now.cause), (verdict.state, verdict.cause)):
            return
        if now is not None:
            self._report.changes.append(_until(now, row.t))
        self._open = ReportChange(row.t, row.t, verdict.state, verdict.cause, verdict.evidence, advice[0] if advice else None)

    def _alerts(self, row: ReplayRow) -> None:
        names = {alert.name for alert in (*row.assessment.alerts, *row.target_alerts)}
        for name in names:
            self._firing[name] = (self._firing.get(name, (row.t, row.t))[0], row.t)
        for name in set(self._firing) - names:
            start, last = self._firing.pop(name)
            self._report.alerts.append(AlertSpan(name, start, last))

    def _naive(self, row: ReplayRow) -> None:
        usage = row.assessment.signals.kv_usage if row.assessment.signals is not None else None
        if usage is not None and usage > NAIVE_USAGE:
            self._above_since = row.t if self._above_since is None else self._above_since
            if self._naive_since is None and row.t - self._above_since >= NAIVE_SECONDS:
                self._naive_since = row.t
            return
        self._above_since = None
        if self._naive_since is not None:
            self._report.naive.append(AlertSpan("usage", self._naive_since, row.t))
            self._naive_since = None


CALM: Final = frozenset({Cause.OK, Cause.IDLE})
"""Between these an engine goes back and forth as work comes and goes."""


def _alike(before: tuple[State, Cause], after: tuple[State, Cause]) -> bool:
    """One verdict; work that comes and goes on a healthy engine is no change worth a line."""
    return before == after or {before[1], after[1]} <= CALM


def _until(change: ReportChange, end: float) -> ReportChange:
    return ReportChange(change.t, end, change.state, change.cause, change.evidence, change.advice)


def _sample(row: ReplayRow) -> ReportSample:
    verdict, signals = row.assessment.verdict, row.assessment.signals
    if signals is None:
        return ReportSample(row.t, verdict.state, verdict.cause)
    return ReportSample(
        t=row.t,
        state=verdict.state,
        cause=verdict.cause,
        kv_usage=signals.kv_usage,
        running=signals.running,
        waiting=signals.waiting,
        preemption_ratio=signals.slow.preemption_ratio,
        recompute_ratio=signals.recompute_ratio,
        generation_tokens_per_second=signals.generation_tokens_per_second,
        time_to_first_token=signals.time_to_first_token.p95 if signals.time_to_first_token else None,
        inter_token_latency=signals.inter_token_latency.p95 if signals.inter_token_latency else None,
        e2e_latency=signals.e2e_latency.p99 if signals.e2e_latency else None,
    )
