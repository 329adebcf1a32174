"""How long an engine with work has been silent, and how long its own steps may take.

Any number that moves is life; a token, or a request that ends, is progress, and so is a prompt that gets further: as long as one is
computed in chunks, the running batch holds more of the cache than ever since the last token. One that is computed over and over does not.
"""

from __future__ import annotations

from typing import Final

from kvwatch.model import CounterTrait, Snapshot, counters_with

TOKEN_COUNTERS: Final = counters_with(CounterTrait.TOKEN)
"""What moves when a token comes out or a request ends."""
_MOVING: Final = counters_with(CounterTrait.MOVES)
_VITAL_SIGNS: Final = (*_MOVING, "preemptions", "running", "waiting", "kv_usage")
_REMEMBERED_SECONDS: Final = 1800.0
"""How long the longest quiet spell of an engine's own is remembered."""
_PATIENCE: Final = 1.5
"""A spell half as long again as the longest that ended by itself is no slow step (prefill steps of 5 to 12 s: ``real_few_long``)."""

_FEW_STEPS: Final = 3.0
"""Longest steps in a window, below which its rate depends on where it begins."""


class Quiet:
    """The silence of one engine; *stall* is the least patience with it, in seconds."""

    def __init__(self, stall: float) -> None:
        self.stall = stall
        self._last: Snapshot | None = None
        self._progress_at = 0.0
        self._most_held = 0.0
        """The highest KV usage (share) since the last token."""
        self._life_at = 0.0
        self._prompt_under_way = False
        self.longest_step = 0.0
        """The longest quiet spell (s) of the engine's own."""
        self._longest_at = 0.0
        self.stalled_until: float | None = None
        """`at` of the scrape at which something moved again after the last stall."""

    def note(self, snapshot: Snapshot) -> None:
        """Take in the newest snapshot; no restart or gap lies before it."""
        before, self._last = self._last, snapshot
        began = before is None or not has_work(before)
        held = (snapshot.kv_usage or 0.0) if snapshot.running else 0.0
        token = began or before is None or blind(snapshot, TOKEN_COUNTERS) or differ(before, snapshot, TOKEN_COUNTERS)
        if token or held > self._most_held:
            self._progress_at, self._most_held = snapshot.at, held
        # Gauges may stand still in a living engine, so without a counter nothing is known.
        if before is not None and not began and not blind(snapshot, _MOVING) and not moved(before, snapshot):
            return
        if before is not None and not began:
            self._note_spell(before.at - self._life_at, snapshot.at)
        self._life_at = snapshot.at
        grown = before is None or (snapshot.running or 0.0) > (before.running or 0.0)
        self._prompt_under_way = grown or bool(snapshot.waiting)

    def end(self, *, restarted: bool) -> None:
        """A restart or a gap: what was seen before counts no more; what is known of the steps only goes with the process."""
        self._last = None
        if restarted:
            self.longest_step, self.stalled_until = 0.0, None

    def seconds_without_progress(self) -> float | None:
        """Seconds since a token came out or a prompt got further while there was work to do; ``None`` when there is none."""
        return self._last.at - self._progress_at if self._last is not None and has_work(self._last) else None

    def seconds_without_life(self) -> float | None:
        """Seconds since any number moved at all while there was work to do; ``None`` when there is none."""
        return self._last.at - self._life_at if self._last is not None and has_work(self._last) else None

    def thawed_since(self, at: float) -> bool:
        """Whether a stall has ended since *at*: rates over it say nothing of the engine's speed."""
        return self.stalled_until is not None and self.stalled_until >= at

    def steps_fill(self, seconds: float) -> bool:
        """Whether steps of this engine's own are so long that *seconds* hold only a few of them, and rates over it vary by themselves."""
        return _FEW_STEPS * self.longest_step > seconds

    def patience(self) -> float:
        """Seconds without movement after which this engine is no longer in a slow step: the policy's, or what its own spells teach.

        While requests wait or the batch has just grown, a prompt may be under way, and its step is longer than the others: without chunks
        as long as a whole prompt takes.
        """
        step = max(self.stall, self._mean_prefill()) * _PATIENCE if self._prompt_under_way else self.stall
        return max(step, _PATIENCE * self.longest_step)

    def _mean_prefill(self) -> float:
        """Seconds from the admission of a request to its first token, over the life of the engine; 0 while nothing is known."""
        last = self._last
        return last.prefill_time_sum / last.finished if last is not None and last.prefill_time_sum and last.finished else 0.0

    def _note_spell(self, seconds: float, at: float) -> None:
        """Something moved again: the quiet before it was one of this engine's own steps, unless it was too long to be one.

        A step without chunks takes as long as a prompt does, and while it lasts the gauges do not show that one has come.
        """
        if at - self._longest_at > _REMEMBERED_SECONDS:
            self.longest_step = 0.0
        if seconds > _PATIENCE * max(self.patience(), self._mean_prefill()):
            self.stalled_until = at
        elif seconds > self.longest_step:
            self.longest_step, self._longest_at = seconds, at


def has_work(snapshot: Snapshot) -> bool:
    """Whether a request runs or waits."""
    return bool(snapshot.running or snapshot.waiting)


def moved(before: Snapshot, after: Snapshot) -> bool:
    """Whether any number of a living engine differs."""
    return differ(before, after, _VITAL_SIGNS)


def differ(before: Snapshot, after: Snapshot, names: tuple[str, ...]) -> bool:
    """Whether any of these fields differs."""
    return any(getattr(before, name) != getattr(after, name) for name in names)


def blind(snapshot: Snapshot, names: tuple[str, ...]) -> bool:
    """Whether none of these fields is reported."""
    return all(getattr(snapshot, name) is None for name in names)
