"""``healthy``: nothing waits, nothing is evicted; said only on evidence."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.finding import Finding, counted, number, percent
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.classifier.thresholds import Thresholds
from kvwatch.model import Cause, Signals, State

_LONG: Final = 60.0
"""A cache above the watermark for a minute is a scale-out signal, a peak is not."""


def judge(signals: Signals, thresholds: Thresholds) -> Finding | None:
    """Running and waiting are known and no other rule has spoken; a queue that no rule could explain is not health."""
    running, waiting, usage = signals.recent.running, signals.recent.waiting, signals.slow.kv_usage
    if running is None or waiting is None or is_sustained(signals):
        return None
    evidence = f"{number(running.mean)} running, {number(waiting.mean)} waiting"
    if usage is not None and signals.slow.seconds >= _LONG and usage.mean > thresholds.kv_watermark:
        high = f"KV cache at {percent(usage.mean)} on average for {number(signals.slow.seconds)} s"
        return Finding(State.HEALTHY, Cause.KV_HIGH, (evidence, high, _evictions(signals)))
    if usage is not None:
        evidence += f", KV cache at {percent(signals.kv_usage if signals.kv_usage is not None else usage.last)}"
    return Finding(State.HEALTHY, Cause.OK, (evidence, _evictions(signals)))


def _evictions(signals: Signals) -> str:
    count, seconds = signals.fast.preemptions, number(signals.fast.seconds)
    return f"evictions are not reported in these {seconds} s" if count is None else f"{counted(count, 'eviction')} in {seconds} s"
