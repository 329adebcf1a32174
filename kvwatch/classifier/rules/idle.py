"""``healthy``/``idle``: no work."""

from __future__ import annotations

from kvwatch.classifier.finding import Finding
from kvwatch.classifier.thresholds import Thresholds
from kvwatch.model import Cause, Signals, State


def judge(signals: Signals, _thresholds: Thresholds) -> Finding | None:
    """Two scrapes in a row without a request: whatever the windows remember, nothing is held back now.

    Asked early, because after the clients have left the windows still hold the evictions of before.
    """
    if not signals.idle:
        return None
    return Finding(State.HEALTHY, Cause.IDLE, ("no request running or waiting",))
