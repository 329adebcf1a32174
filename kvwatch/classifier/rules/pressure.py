"""Whether the cache is the thing that has no room: asked by the rules that explain a queue or an eviction.

Usage is sampled after a step, so it dips whenever a request has just left or been evicted; only the fullest moment of
the window says what was possible.
"""

from __future__ import annotations

from typing import Final

from kvwatch.model import Signals

_HOT: Final = 0.90
_LONGER_THAN_MEAN: Final = 1.15
"""The request at the head of a blocked queue is longer than the mean one: short ones pass sooner."""
_NEARLY_FULL: Final = 0.90


def free_tokens_at_peak(signals: Signals) -> float | None:
    """KV tokens that were free at the fullest moment of the fast window."""
    usage = signals.fast.kv_usage
    return None if usage is None or signals.capacity_tokens is None else (1 - usage.peak) * signals.capacity_tokens


def next_prompt_does_not_fit(signals: Signals) -> bool:
    """At its fullest moment the cache had no room for one more prompt (vLLM admits a prompt only if all of it fits)."""
    free = free_tokens_at_peak(signals)
    return free is not None and signals.next_prompt_tokens is not None and free < _LONGER_THAN_MEAN * signals.next_prompt_tokens


def is_hot(signals: Signals) -> bool:
    """The cache was nearly full at its fullest moment."""
    usage = signals.fast.kv_usage
    return usage is not None and usage.peak >= _HOT


def one_more_sequence_fills_it(signals: Signals) -> bool:
    """The fullest moment and one more sequence make (nearly) a full cache: an eviction frees as much as its victim held."""
    usage = signals.fast.kv_usage
    return usage is not None and usage.peak + (signals.sequence_share or 0.0) >= _NEARLY_FULL


def is_pinned(signals: Signals) -> bool:
    """`running` stands at one count instead of swinging: a limit on sequences, not on memory."""
    running = signals.fast.running
    if running is None or signals.at_ceiling_share is None or signals.running_ceiling is None:
        return False
    lowest = signals.running_ceiling - max(1.0, 0.1 * signals.running_ceiling)
    return signals.at_ceiling_share >= 0.4 and running.low >= lowest  # noqa: PLR2004 - a slot is refilled within a step or two
