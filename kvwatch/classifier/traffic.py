"""Who waits since when, who was seen going back to the queue, and what is held while nobody runs."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.windows import queue_of
from kvwatch.model import Snapshot

_NEAR_FULL: Final = 0.8
"""A batch that shrinks below this KV usage lost nobody for want of blocks (a preempted one is seen from 0.81 on: ``kv_admission_rag``)."""
_COOL: Final = 0.7
"""KV usage below which a cache is short of nothing."""


class Traffic:
    """What was seen of one engine's queue and cache; *span* is for how many seconds preemptions are remembered."""

    def __init__(self, span: float) -> None:
        self.span = span
        self._last: Snapshot | None = None
        self._queued_since: float | None = None
        self._cool_since: float | None = None
        self._preempted: list[tuple[float, float]] = []
        self.held_at_rest: float | None = None
        """Share of the pool that was held while nothing ran or waited, when that was last seen; never more than is held now."""

    def note(self, snapshot: Snapshot) -> None:
        """Take in the newest snapshot; no restart or gap lies before it."""
        before, self._last = self._last, snapshot
        queued = bool(queue_of(snapshot))
        counted = before is not None and before.preemptions != snapshot.preemptions
        cool = not queued and snapshot.kv_usage is not None and snapshot.kv_usage < _COOL
        self._queued_since = _since(self._queued_since, snapshot.at, holds=queued)
        self._cool_since = _since(None if counted else self._cool_since, snapshot.at, holds=cool)
        if before is not None and (back := _back_to_the_queue(before, snapshot)) > 0:
            self._preempted.append((snapshot.at, back))
        while self._preempted and self._preempted[0][0] <= snapshot.at - self.span:
            self._preempted.pop(0)
        self._note_held(before, snapshot)

    def end(self, *, restarted: bool) -> None:
        """A restart or a gap: what was seen before counts no more; what is held at rest only goes with the process."""
        self._last = self._queued_since = self._cool_since = None
        self._preempted.clear()
        if restarted:
            self.held_at_rest = None

    def queued_seconds(self) -> float:
        """For how long every scrape has found a request waiting for capacity; 0 where the newest finds none."""
        return self._last.at - self._queued_since if self._last is not None and self._queued_since is not None else 0.0

    def cool_seconds(self) -> float | None:
        """For how long nobody has waited or been preempted and the cache has been cool; ``None`` while that is not so."""
        return self._last.at - self._cool_since if self._last is not None and self._cool_since is not None else None

    def preempted(self, seconds: float) -> float:
        """Requests seen going back from the running batch to the queue in the last *seconds*: at least so many were preempted.

        The counter lags behind, and before vLLM 0.19 misses a victim that was still in its prefill.
        """
        return sum(count for at, count in self._preempted if self._last is not None and at > self._last.at - seconds)

    def _note_held(self, before: Snapshot | None, snapshot: Snapshot) -> None:
        if snapshot.kv_usage is None:
            return
        if before is not None and all(one.running == 0 and one.waiting == 0 for one in (before, snapshot)):
            self.held_at_rest = snapshot.kv_usage
        elif self.held_at_rest is not None:
            self.held_at_rest = min(self.held_at_rest, snapshot.kv_usage)


def _since(since: float | None, at: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return at if since is None else since


def _back_to_the_queue(before: Snapshot, after: Snapshot) -> float:
    """Requests that left a nearly full batch without finishing while as many more wait: by so many it fell and the queue grew."""
    if (before.kv_usage or 0.0) < _NEAR_FULL or None in (before.running, after.running, before.waiting, after.waiting):
        return 0.0
    if before.finished is None or after.finished is None:
        return 0.0
    left = (before.running or 0.0) - (after.running or 0.0) - (after.finished - before.finished)
    return max(0.0, min(left, (after.waiting or 0.0) - (before.waiting or 0.0)))
