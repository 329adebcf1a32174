"""Whether requests wait for capacity: asked by every rule that explains a queue."""

from __future__ import annotations

from typing import Final

from kvwatch.model import Signals

_SHORTEST_QUEUE: Final = 1.0
_SUSTAINED: Final = 0.7
"""Three samples of four: a queue that one step empties is not one."""
_UNBROKEN: Final = 4.0
"""Seconds without a scrape that found the queue empty: two polls at the default interval (``seq_limit`` onset)."""


def is_sustained(signals: Signals) -> bool:
    """A queue, not a burst: one request waits on average and hardly any sample is without, or none was without for several seconds."""
    queue, share = signals.recent.queue, signals.recent.queued_share
    if queue is None or share is None:
        return False
    return signals.queued_seconds >= _UNBROKEN or (queue.mean >= _SHORTEST_QUEUE and share >= _SUSTAINED)
