"""Whether requests wait for capacity: asked by every rule that explains a queue."""

from __future__ import annotations

from typing import Final

from kvwatch.model import Signals

_SHORTEST_QUEUE: Final = 1.0
_SUSTAINED: Final = 0.7
"""Three samples of four: a queue that one step empties is not one."""


def is_sustained(signals: Signals) -> bool:
    """A queue, not a burst: at least one request waits on average and hardly any sample is without."""
    queue, share = signals.recent.queue, signals.recent.queued_share
    return queue is not None and share is not None and queue.mean >= _SHORTEST_QUEUE and share >= _SUSTAINED
