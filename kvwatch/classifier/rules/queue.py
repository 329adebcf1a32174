"""Whether requests wait for capacity: asked by every rule that explains a queue."""

from __future__ import annotations

from typing import Final

from kvwatch.model import Signals

_SUSTAINED: Final = 0.7
"""Three samples of four: a queue that one step empties is not one."""
_UNBROKEN: Final = 4.0
"""Seconds without a scrape that found the queue empty: two polls at the default interval (``seq_limit`` onset)."""


def is_sustained(signals: Signals) -> bool:
    """A queue, not a burst: hardly any sample is without a waiting request, or none was without for several seconds."""
    share = signals.recent.queued_share
    return share is not None and (signals.queued_seconds >= _UNBROKEN or share >= _SUSTAINED)
