"""Time that runs faster: the demo's ten minutes in one."""

from __future__ import annotations

from kvwatch.clock import Clock


class FasterClock:
    """*clock*, running *speed* times as fast since this object was made."""

    def __init__(self, clock: Clock, speed: float) -> None:
        self._clock = clock
        self._speed = speed
        self._monotonic = clock.monotonic()
        self._unix = clock.unix()

    def monotonic(self) -> float:
        """Virtual seconds that never go back."""
        return self._monotonic + self._elapsed()

    def unix(self) -> float:
        """Virtual seconds since the epoch: they run ahead of the wall's."""
        return self._unix + self._elapsed()

    def _elapsed(self) -> float:
        return (self._clock.monotonic() - self._monotonic) * self._speed
