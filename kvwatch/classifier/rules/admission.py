"""``kv_bound``/``admission``: requests wait because the next prompt does not fit the free blocks."""

from __future__ import annotations

from kvwatch.classifier.finding import Finding, number, percent
from kvwatch.classifier.rules.pressure import free_tokens_at_peak, is_hot, is_pinned, next_prompt_does_not_fit
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.classifier.thresholds import Thresholds
from kvwatch.model import Cause, Signals, State


def judge(signals: Signals, _thresholds: Thresholds) -> Finding | None:
    """A sustained queue, and at its fullest the cache had no room for the next prompt.

    Where the next prompt is not known, a hot cache under a running count that swings says the same; a count that stands
    still means another limit.
    """
    if not is_sustained(signals) or (is_pinned(signals) and not _full(signals)):
        return None
    waiting = f"{number(signals.recent.queue.mean if signals.recent.queue else 0)} requests waiting"
    free = free_tokens_at_peak(signals)
    if next_prompt_does_not_fit(signals) and free is not None and signals.next_prompt_tokens is not None:
        reason = f"{number(free)} KV tokens free at the fullest moment, about {number(signals.next_prompt_tokens)} needed by the next prompt"
        return Finding(State.KV_BOUND, Cause.ADMISSION, (waiting, reason))
    if is_hot(signals) and not is_pinned(signals) and signals.fast.kv_usage is not None:
        reason = f"KV cache at {percent(signals.fast.kv_usage.peak)} at its fullest while the running count swings"
        return Finding(State.KV_BOUND, Cause.ADMISSION, (waiting, reason))
    return None


def _full(signals: Signals) -> bool:
    """With few, long sequences a count that stands still may stand at the cache's limit as well as at that of the slots."""
    return next_prompt_does_not_fit(signals)
