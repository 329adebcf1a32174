"""The last half hour of every engine, for the sparklines of the status page.

Bounded by construction: an engine has at most `POINTS` points in packed arrays, about 12 KiB with all overheads. A young
history is fine-grained, a second to the point; whenever it is full, neighbours are merged, until half an hour fits at
`COARSEST_SECONDS` to the point. Nothing is interpolated: a poll without numbers leaves a point without numbers, polls that
never came leave no point at all, and points are not merged across the time nobody watched.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kvwatch.exporter.web.condition import Condition, condition_of
from kvwatch.model import EngineId, GaugeStats, Quantiles, Signals, TargetView

SPAN_SECONDS: Final = 1800.0
FINEST_SECONDS: Final = 1.0
COARSEST_SECONDS: Final = 8.0
POINTS: Final = int(SPAN_SECONDS / COARSEST_SECONDS) + 1
_VANISHED_KEPT: Final = 8
"""Engines of a target that are gone and may come back; the one gone longest is dropped first."""
_CONDITIONS: Final = tuple(Condition)


@dataclass(frozen=True, slots=True)
class Point:
    """A few seconds of an engine's history; numbers are ``None`` where the polls brought none."""

    at: float
    """Monotonic time of the first poll in it."""
    condition: Condition
    """As of the last poll in it."""
    kv_mean: float | None
    kv_peak: float | None
    running: float | None
    waiting: float | None
    preemption_ratio: float | None
    """Highest of the fast window's."""
    tokens_per_second: float | None
    first_token: float | None
    """95th percentile of the time to first token in seconds, the highest."""
    queue_time: float | None
    """The same of the time in the queue."""


def _mean(so_far: float, number: float, polls: int) -> float:
    return so_far + (number - so_far) / polls


def _highest(so_far: float, number: float, _polls: int) -> float:
    return max(so_far, number)


def _kv_stats(signals: Signals, read: Callable[[GaugeStats], float]) -> float | None:
    return signals.kv_usage if signals.recent.kv_usage is None else read(signals.recent.kv_usage)


def _bounded_p95(queue: Quantiles) -> float:
    """The 95th percentile, and no more than the mean allows: at most 1 in 20 times is longer than 20 means (Markov).

    vLLM's first bucket of the time in the queue ends at 0.3 s, so inside it the percentile alone reads 285 ms where nobody waits.
    """
    return queue.p95 if queue.mean is None else min(queue.p95, _TIMES_THE_MEAN * queue.mean)


_TIMES_THE_MEAN: Final = 20.0
"""1 ÷ (1 - 0.95)."""
_COLUMNS: Final[tuple[tuple[Callable[[Signals], float | None], Callable[[float, float, int], float]], ...]] = (
    (lambda signals: _kv_stats(signals, lambda usage: usage.mean), _mean),
    (lambda signals: _kv_stats(signals, lambda usage: usage.peak), _highest),
    (lambda signals: signals.running, _mean),
    (lambda signals: signals.waiting, _mean),
    (lambda signals: signals.fast.preemption_ratio, _highest),
    (lambda signals: signals.generation_tokens_per_second, _mean),
    (lambda signals: None if signals.time_to_first_token is None else signals.time_to_first_token.p95, _highest),
    (lambda signals: None if signals.queue_time is None else _bounded_p95(signals.queue_time), _highest),
)
"""For each number of a `Point`, in its order: where it is read and how two polls of one slot become one."""


class Track:
    """The points of one engine, packed: an absent number is NaN in here and ``None`` outside."""

    __slots__ = ("_at", "_columns", "_conditions", "_grain", "_merged", "last_at")

    def __init__(self) -> None:
        self._at = array("d")
        self._conditions = array("B")
        self._columns = tuple(array("f") for _ in _COLUMNS)
        self._grain = FINEST_SECONDS
        self._merged = 0
        self.last_at = -math.inf

    def add(self, at: float, condition: Condition, signals: Signals | None) -> None:
        """Add a poll: part of the last point while that is younger than the grain, else a point of its own. One seen before is ignored."""
        if at <= self.last_at:
            return
        self.last_at = at
        if not self._at or at - self._at[-1] >= self._grain:
            self._open(at)
        self._merged += 1
        self._conditions[-1] = _CONDITIONS.index(condition)
        for column, (read, merge) in zip(self._columns, _COLUMNS, strict=True):
            number = None if signals is None else read(signals)
            if number is not None:
                column[-1] = number if math.isnan(column[-1]) else merge(column[-1], number, self._merged)

    def _open(self, at: float) -> None:
        self._merged = 0
        self._at.append(at)
        self._conditions.append(0)
        for column in self._columns:
            column.append(math.nan)
        while self._at[0] < at - SPAN_SECONDS:
            self._drop(0)
        if len(self._at) > POINTS:
            self._coarsen()

    def _drop(self, index: int) -> None:
        packed: tuple[array[float] | array[int], ...] = (self._at, self._conditions, *self._columns)
        for numbers in packed:
            numbers.pop(index)

    def _coarsen(self) -> None:
        """Double the grain and merge what now belongs together, but never the point that is still open, or the oldest go."""
        if self._grain >= COARSEST_SECONDS:
            self._drop(0)
            return
        self._grain *= 2
        index = 0
        while index + 2 < len(self._at):
            if self._at[index + 1] - self._at[index] < self._grain:
                self._merge_into(index)
            index += 1

    def _merge_into(self, index: int) -> None:
        for column, (_, merge) in zip(self._columns, _COLUMNS, strict=True):
            number, following = column[index], column[index + 1]
            column[index] = following if math.isnan(number) else number if math.isnan(following) else merge(number, following, 2)
        self._conditions[index] = self._conditions[index + 1]
        self._drop(index + 1)

    @property
    def begun(self) -> float | None:
        """When its oldest point began."""
        return self._at[0] if self._at else None

    def points(self) -> Iterator[Point]:
        """The points, oldest first."""
        for at, condition, *numbers in zip(self._at, self._conditions, *self._columns, strict=True):
            yield Point(at, _CONDITIONS[condition], *(None if math.isnan(number) else number for number in numbers))

    def conditions(self) -> Iterator[tuple[float, Condition]]:
        """When each point began and its condition, oldest first: all the state band needs, at a tenth of the cost."""
        return ((at, _CONDITIONS[condition]) for at, condition in zip(self._at, self._conditions, strict=True))


class ChartHistory:
    """The tracks of all engines. Pollers record while pages are drawn, so every method takes the lock, and none keeps it long."""

    def __init__(self) -> None:
        self._tracks: dict[str, dict[EngineId, Track]] = {}
        self._lock = threading.Lock()

    def record(self, view: TargetView) -> None:
        """Take in a view that was just published."""
        if view.at is None:
            return
        with self._lock:
            tracks = self._tracks.setdefault(view.name, {})
            for assessment in view.assessments:
                if assessment.verdict.engine is not None:
                    track = tracks.setdefault(assessment.verdict.engine, Track())
                    track.add(view.at, condition_of(assessment.verdict), assessment.signals)
            self._forget_vanished(tracks, view.at)

    def _forget_vanished(self, tracks: dict[EngineId, Track], now: float) -> None:
        vanished = sorted((track.last_at, engine) for engine, track in tracks.items() if track.last_at < now)
        for position, (last_at, engine) in enumerate(reversed(vanished)):
            if position >= _VANISHED_KEPT or last_at < now - SPAN_SECONDS:
                del tracks[engine]

    def forget(self, target: str) -> None:
        """Drop a target that is not watched any more."""
        with self._lock:
            self._tracks.pop(target, None)

    def oldest(self) -> float | None:
        """When the oldest point of all began; ``None`` while there is none."""
        with self._lock:
            begun = [track.begun for tracks in self._tracks.values() for track in tracks.values() if track.begun is not None]
        return min(begun, default=None)

    def points(self, target: str, engine: EngineId) -> tuple[Point, ...]:
        """The points of an engine, oldest first; empty for one nobody knows."""
        with self._lock:
            track = self._tracks.get(target, {}).get(engine)
            return () if track is None else tuple(track.points())

    def conditions(self, target: str, engine: EngineId) -> tuple[tuple[float, Condition], ...]:
        """When each point of an engine began and its condition, oldest first; empty for one nobody knows."""
        with self._lock:
            track = self._tracks.get(target, {}).get(engine)
            return () if track is None else tuple(track.conditions())
