"""The only place that reads a clock.

Ages, rates and timers use `monotonic`; `unix` is for timestamps that people and Prometheus read. Tests pass a fake.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What everything that is not pure gets its time from."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...

    def unix(self) -> float:
        """Seconds since the epoch, as the host has it."""
        ...


class SystemClock:
    """The real clock."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        return time.monotonic()

    def unix(self) -> float:
        """Seconds since the epoch, as the host has it."""
        return time.time()
