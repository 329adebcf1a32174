"""``kv_bound``/``preempting``: running requests are evicted and computed again."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.finding import Finding, number, percent
from kvwatch.classifier.rules.pressure import one_more_sequence_fills_it
from kvwatch.classifier.thresholds import Thresholds
from kvwatch.model import Cause, Signals, State

_FEWEST: Final = 3
"""Single evictions happen to a cache that is well used."""
_SMALLEST_RATIO: Final = 0.02


def judge(signals: Signals, _thresholds: Thresholds) -> Finding | None:
    """Several evictions in half a minute, a share of the stints worth naming, and a cache that was full.

    The counter lags (vLLM counts an eviction when its victim next emits a token) and counts evictions for priority and
    for cache resets too, so a cache with plenty of room says these were not for want of KV.
    """
    window = signals.fast
    count, ratio = window.preemptions, window.preemption_ratio
    if count is None or count < _FEWEST or (ratio is not None and ratio < _SMALLEST_RATIO):
        return None
    if not signals.recent.preemptions:
        return None
    if window.kv_usage is not None and not one_more_sequence_fills_it(signals):
        return None
    evidence = [f"{number(count)} evictions in {number(window.seconds)} s"]
    if ratio is not None:
        evidence[0] += f": {percent(ratio)} of the stints on the GPU ended in one"
    if window.kv_usage is not None:
        evidence.append(f"KV cache at {percent(window.kv_usage.peak)} at its fullest")
    if signals.waiting:
        evidence.append(f"{number(signals.waiting)} requests waiting")
    return Finding(State.KV_BOUND, Cause.PREEMPTING, tuple(evidence))
