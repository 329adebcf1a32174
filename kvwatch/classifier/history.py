"""What is remembered of one engine: its snapshots of the slow window, restarts and gaps taken out.

A restart (any counter went back, or ``_created`` moved) and a gap longer than the slow window, across which something moved, both end
what was known: the numbers of before say nothing of the engine that runs now. After a restart the counters are counted from zero, as
PromQL's ``increase`` does; after a gap they are counted from the first snapshot seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import chain
from typing import Final

from kvwatch.classifier.windows import queue_of
from kvwatch.model import COUNTERS, HISTOGRAMS, CounterTrait, Histogram, Snapshot, counters_with

TOKEN_COUNTERS: Final = counters_with(CounterTrait.TOKEN)
"""What moves when a token comes out or a request ends."""
_BORN_LATE: Final = counters_with(CounterTrait.BORN_LATE)
_RESET_EVIDENCE: Final = counters_with(CounterTrait.PROVES_RESET)
_MOVING: Final = counters_with(CounterTrait.MOVES)
_VITAL_SIGNS: Final = (*_MOVING, "preemptions", "running", "waiting", "kv_usage")
_CREATED_SLACK: Final = 1.0
_NEAR_FULL: Final = 0.8
"""A batch that shrinks below this KV usage lost nobody for want of blocks (a preempted one is seen from 0.81 on: ``kv_admission_rag``)."""
_COOL: Final = 0.7
"""KV usage below which a cache is short of nothing."""
_SPELLS_SECONDS: Final = 1800.0
"""How long the longest quiet spell of an engine's own is remembered."""
PATIENCE: Final = 1.5
"""A spell half as long again as the longest that ended by itself is no slow step any more (prefill steps of 5 to 12 s: ``real_few_long``)."""
SPACING_SECONDS: Final = 15.0
"""A window of minutes needs no more samples than that; a fleet of hundreds of engines needs the memory."""


class History:
    """The snapshots of one engine over the last *span* seconds: all of the last *fine* seconds, one in fifteen seconds of before.

    *max_gap* is the longest time (seconds) between two snapshots that are still one story, *stall* the least patience with a silent engine.
    """

    def __init__(self, span: float, fine: float, max_gap: float, stall: float = 10.0) -> None:
        self._span = span
        self._stall = stall
        self._prompt_under_way = False
        self._fine = fine
        self._max_gap = max_gap
        self._older: deque[Snapshot] = deque()
        self._snapshots: deque[Snapshot] = deque()
        self.restarts: deque[float] = deque(maxlen=4)
        """`at` of the last few restarts."""
        self.highest_running = 0.0
        """The most sequences seen running since the engine started: max_num_seqs is at least that, and no limit below it binds."""
        self.held_at_rest: float | None = None
        """Share of the pool that was held while nothing ran or waited, when that was last seen; never more than is held now."""
        self._queued_since: float | None = None
        self._cool_since: float | None = None
        self._preempted: deque[tuple[float, float]] = deque()
        self._longest_spell: tuple[float, float] | None = None
        self.stalled_until: float | None = None
        """`at` of the scrape at which something moved again after the last stall."""
        self._first_seen: float | None = None
        self._last_token_at: float | None = None
        self._last_life_at: float | None = None

    @property
    def last(self) -> Snapshot:
        """The newest snapshot; raises `IndexError` on an empty history."""
        return self._snapshots[-1]

    @property
    def seconds_seen(self) -> float:
        """Seconds since the first scrape of this engine after it (or kvwatch) started, or after a gap; 0 when empty."""
        return self._snapshots[-1].at - self._first_seen if self._first_seen is not None else 0.0

    def append(self, snapshot: Snapshot, *, restarted: bool = False) -> Snapshot | None:
        """Take in the newest snapshot; returns the one before it in the same story, or ``None`` where a new one begins.

        *restarted*: the API server's process is known to be another one.
        """
        previous = self._snapshots[-1] if self._snapshots else None
        gap = previous is not None and snapshot.at - previous.at > self._max_gap and _differ(previous, snapshot, _VITAL_SIGNS)
        again = previous is not None and (restarted or self._went_back(snapshot))
        if gap or again:
            self._forget()
        if again:
            self.restarts.append(snapshot.at)
            self.highest_running, self.held_at_rest, self._longest_spell = 0.0, None, None
        if previous is not None and again and not gap:
            self._snapshots.append(_at_zero(snapshot, previous.at))
        if gap or again:
            previous = None
        self._note_births(snapshot)
        self._note_progress(previous, snapshot)
        self._note_batch(previous, snapshot)
        if self._first_seen is None:
            self._first_seen = snapshot.at
        self._snapshots.append(snapshot)
        self.highest_running = max(self.highest_running, snapshot.running or 0.0)
        self._age(snapshot.at)
        return previous

    def within(self, seconds: float, slack: float) -> list[Snapshot]:
        """The snapshots of the last *seconds*, at most the fine ones (give or take *slack*), and never fewer than the last two."""
        since = self._snapshots[-1].at - seconds - slack
        found = [snapshot for snapshot in self._snapshots if snapshot.at >= since]
        return found if len(found) > 1 else list(self._snapshots)[-2:]

    def spread(self) -> list[Snapshot]:
        """Snapshots over the whole span, fifteen seconds or one poll apart, the newest among them."""
        found = list(self._older)
        for snapshot in self._snapshots:
            if not found or snapshot.at - found[-1].at >= SPACING_SECONDS:
                found.append(snapshot)
        if found[-1] is not self._snapshots[-1]:
            found.append(self._snapshots[-1])
        return found

    def _age(self, now: float) -> None:
        """Let go of what is too old, keeping one snapshot at or before each edge: increases are counted from there."""
        while len(self._snapshots) > 2 and now - self._snapshots[1].at >= self._fine:  # noqa: PLR2004 - two make an increase
            oldest = self._snapshots.popleft()
            if not self._older or oldest.at - self._older[-1].at >= SPACING_SECONDS:
                self._older.append(oldest)
        while len(self._older) > 1 and now - self._older[1].at >= self._span:
            self._older.popleft()

    def seconds_without_progress(self) -> float | None:
        """Seconds since a token came out while there was work to do; ``None`` when there is none."""
        return self._since(self._last_token_at)

    def seconds_without_life(self) -> float | None:
        """Seconds since any number moved at all while there was work to do; ``None`` when there is none."""
        return self._since(self._last_life_at)

    def queued_seconds(self) -> float:
        """For how long every scrape has found a request waiting for capacity; 0 where the newest finds none."""
        return self._snapshots[-1].at - self._queued_since if self._snapshots and self._queued_since is not None else 0.0

    def cool_seconds(self) -> float | None:
        """For how long nobody has waited or been preempted and the cache has been cool; ``None`` while that is not so."""
        return self._snapshots[-1].at - self._cool_since if self._snapshots and self._cool_since is not None else None

    def preempted(self, seconds: float) -> float:
        """Requests seen going back from the running batch to the queue in the last *seconds*: at least so many were preempted.

        The counter lags behind, and before vLLM 0.19 misses a victim that was still in its prefill.
        """
        return sum(count for at, count in self._preempted if at > self._snapshots[-1].at - seconds)

    def patience(self) -> float:
        """Seconds without movement after which this engine is no longer in a slow step: the policy's, or what its own spells of quiet teach.

        While requests wait or the batch has just grown, a prompt may be under way, and its step is longer than the others.
        """
        longest = self._longest_spell[1] if self._longest_spell is not None else 0.0
        return max(self._stall * (PATIENCE if self._prompt_under_way else 1.0), PATIENCE * longest)

    def _since(self, moment: float | None) -> float | None:
        if not self._snapshots or moment is None or not _has_work(self._snapshots[-1]):
            return None
        return self._snapshots[-1].at - moment

    def _note_batch(self, previous: Snapshot | None, snapshot: Snapshot) -> None:
        """Who waits since when, who was seen going back to the queue, and what is held while nobody runs."""
        queued = bool(queue_of(snapshot))
        preempted = previous is not None and previous.preemptions != snapshot.preemptions
        cool = not queued and not preempted and snapshot.kv_usage is not None and snapshot.kv_usage < _COOL
        self._cool_since = (self._cool_since if self._cool_since is not None else snapshot.at) if cool else None
        self._queued_since = (self._queued_since if self._queued_since is not None else snapshot.at) if queued else None
        if (back := _back_to_the_queue(previous, snapshot)) > 0:
            self._preempted.append((snapshot.at, back))
        while self._preempted and self._preempted[0][0] <= snapshot.at - self._span:
            self._preempted.popleft()
        if snapshot.kv_usage is None:
            return
        at_rest = all(one is not None and one.running == 0 and one.waiting == 0 for one in (previous, snapshot))
        if at_rest:
            self.held_at_rest = snapshot.kv_usage
        elif self.held_at_rest is not None:
            self.held_at_rest = min(self.held_at_rest, snapshot.kv_usage)

    def _note_spell(self, previous: Snapshot, snapshot: Snapshot) -> None:
        """Something moved again: the quiet before it was one of this engine's own steps, unless it was too long to be one."""
        if self._longest_spell is not None and snapshot.at - self._longest_spell[0] > _SPELLS_SECONDS:
            self._longest_spell = None
        quiet = previous.at - self._last_life_at if self._last_life_at is not None else 0.0
        longest = self._longest_spell[1] if self._longest_spell is not None else 0.0
        if quiet > PATIENCE * self.patience():
            self.stalled_until = snapshot.at
        elif quiet > longest:
            self._longest_spell = (snapshot.at, quiet)

    def _note_progress(self, previous: Snapshot | None, snapshot: Snapshot) -> None:
        began = previous is None or not _has_work(previous)
        blind = all(getattr(snapshot, name) is None for name in TOKEN_COUNTERS)
        if previous is None or began or blind or _differ(previous, snapshot, TOKEN_COUNTERS):
            self._last_token_at = snapshot.at
        lifeless = all(getattr(snapshot, name) is None for name in _MOVING)  # gauges may stand still in a living engine
        if previous is None or began or lifeless or _differ(previous, snapshot, _VITAL_SIGNS):
            if previous is not None and not began:
                self._note_spell(previous, snapshot)
            self._last_life_at = snapshot.at
            grown = previous is None or (snapshot.running or 0.0) > (previous.running or 0.0)
            self._prompt_under_way = grown or bool(snapshot.waiting)

    def _went_back(self, snapshot: Snapshot) -> bool:
        """Whether the counters of *snapshot* started again from zero since they were last seen."""
        if _created_later(self._snapshots[-1], snapshot):
            return True
        pairs = ((self._latest(name), getattr(snapshot, name)) for name in _RESET_EVIDENCE)
        return any(old is not None and new is not None and new < old for old, new in pairs)

    def _latest(self, name: str) -> float | None:
        values = (getattr(snapshot, name) for snapshot in chain(reversed(self._snapshots), reversed(self._older)))
        return next((value for value in values if value is not None), None)

    def _note_births(self, snapshot: Snapshot) -> None:
        """A counter that appears was zero before: Ray shows none, and old vLLM no finished request, before there is something to count.

        Only where other counters were there already, or where an idle engine had counted nothing at all: any other page was incomplete.
        """
        if not self._snapshots or (self._snapshots[-1].generation_tokens is None and not _is_unused(self._snapshots[-1])):
            return
        born = {name: 0.0 for name in _BORN_LATE if getattr(snapshot, name) is not None and self._latest(name) is None}
        if born:
            for kept in (self._older, self._snapshots):
                earlier = [replace(one, **born) for one in kept]  # type: ignore[arg-type]
                kept.clear()
                kept.extend(earlier)

    def _forget(self) -> None:
        self._snapshots.clear()
        self._older.clear()
        self._preempted.clear()
        self._first_seen = self._last_token_at = self._last_life_at = self._queued_since = self._cool_since = None


def _has_work(snapshot: Snapshot) -> bool:
    return bool(snapshot.running or snapshot.waiting)


def _back_to_the_queue(before: Snapshot | None, after: Snapshot) -> float:
    """Requests that left a nearly full batch without finishing while as many more wait: by so many it fell and the queue grew."""
    if before is None or (before.kv_usage or 0.0) < _NEAR_FULL:
        return 0.0
    if None in (before.running, after.running, before.waiting, after.waiting, before.finished, after.finished):
        return 0.0
    left = (before.running or 0.0) - (after.running or 0.0) - ((after.finished or 0.0) - (before.finished or 0.0))
    return max(0.0, min(left, (after.waiting or 0.0) - (before.waiting or 0.0)))


def _differ(before: Snapshot, after: Snapshot, names: tuple[str, ...]) -> bool:
    return any(getattr(before, name) != getattr(after, name) for name in names)


def _is_unused(snapshot: Snapshot) -> bool:
    """At rest, and no counter is there."""
    return snapshot.running == 0 and not _has_work(snapshot) and all(getattr(snapshot, name) is None for name in COUNTERS)


def _created_later(before: Snapshot, after: Snapshot) -> bool:
    return before.created is not None and after.created is not None and after.created > before.created + _CREATED_SLACK


def _at_zero(snapshot: Snapshot, at: float) -> Snapshot:
    """Where the counters of a freshly restarted engine began: zero, with no gauge known."""
    zeros: dict[str, float | Histogram | None] = {name: 0.0 for name in COUNTERS if getattr(snapshot, name) is not None}
    for name in HISTOGRAMS:
        histogram = getattr(snapshot, name)
        if histogram is not None:
            zeros[name] = replace(histogram, counts=[0.0] * len(histogram.counts), sum=0.0)
    return Snapshot(engine=snapshot.engine, at=at, created=snapshot.created, **zeros)  # type: ignore[arg-type]
