"""What the preemptions of the windows amount to: the state and the page are asked of the same numbers."""

from __future__ import annotations

from kvwatch.config.policy import Policy
from kvwatch.model import Signals


def is_storm(signals: Signals, policy: Policy) -> bool | None:
    """Both windows above the ratio, and enough preemptions in the slow one to keep a quiet server quiet; ``None`` where not reported."""
    if signals.slow.preemptions is None:
        return None
    slow, fast = signals.slow.preemption_ratio, signals.fast.preemption_ratio
    if slow is None or fast is None:  # nothing ran in the window, so nothing was preempted
        return False
    limit = policy.thresholds
    return slow > limit.storm_ratio and fast > limit.storm_ratio and signals.slow.preemptions >= limit.storm_min_preemptions
