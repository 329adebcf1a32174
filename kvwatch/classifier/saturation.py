"""Whether a bigger batch still gets more done: what this engine achieved at each batch size since it started.

By Little's law tokens per second are the batch size over the time a token takes, so this is a property of the processor
and of the work, not of the load offered: below the limit a larger batch yields more tokens, at the limit it only makes
each of them later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvwatch.classifier.windows import increase, prefill_share, rate
from kvwatch.model import Saturation, Snapshot, Window

_SMALLEST_BATCH: Final = 16.0
"""Below this the numbers of a few requests decide, not the processor."""
_GROWTH: Final = 1.8
"""The batch has grown at least so much since…"""
_GAIN: Final = 1.10
"""…and yields less than this factor of what the smaller one did."""
_LIKE: Final = 0.2
"""Prefill tokens are cheaper than decoded ones, so only like mixtures are compared: shares of prompt tokens this close."""
_LIKE_CONTEXT: Final = 1.5
"""Longer contexts are dearer, so only sequences that hold shares of the pool within this factor are compared."""
_CRAWL: Final = 4.0
"""A batch that yields less than one part in so many of what it did crawls (public reports: a fifth and much less)."""
_WEIGHT: Final = 0.2
_ENOUGH: Final = 3
_FORGET_SECONDS: Final = 3600.0
"""What was achieved an hour ago was another load, and perhaps another clock rate of the card."""


@dataclass(slots=True)
class _Level:
    """What batches of about one size achieved: exponentially weighted means and how often it was seen."""

    running: float
    tokens_per_second: float
    prefill_share: float
    context: float
    seen: int
    at: float
    best: float
    """The highest mean of tokens per second that this level had."""


class ThroughputCurve:
    """Tokens per second by batch size and by how much of the pool a sequence holds, half an octave a level."""

    def __init__(self) -> None:
        self._levels: dict[tuple[int, int], _Level] = {}

    def note(self, before: Snapshot, after: Snapshot) -> None:
        """Learn from two snapshots in a row (no restart between them)."""
        if not before.running or not after.running or after.at <= before.at:
            return
        generated, prompt = _tokens_between(before, after)
        if generated + prompt <= 0:
            return
        running = (before.running + after.running) / 2
        context = (after.kv_usage or 0.0) / after.running
        rate, share = (generated + prompt) / (after.at - before.at), prompt / (generated + prompt)
        key = _half_octave(running), _half_octave(context)
        level = self._levels.get(key)
        if level is None or after.at - level.at > _FORGET_SECONDS:
            level = self._levels[key] = _Level(running, rate, share, context, 0, after.at, 0.0)
        level.running += _WEIGHT * (running - level.running)
        level.tokens_per_second += _WEIGHT * (rate - level.tokens_per_second)
        level.prefill_share += _WEIGHT * (share - level.prefill_share)
        level.context += _WEIGHT * (context - level.context)
        level.seen, level.at = level.seen + 1, after.at
        if level.seen >= _ENOUGH:
            level.best = max(level.best, level.tokens_per_second)

    def saturation(self, running: float, tokens_per_second: float, prefill_share: float, context: float | None) -> Saturation | None:
        """The smaller batch that got as much of the same work done as *running* sequences do now, if there was one."""
        if running < _SMALLEST_BATCH:
            return None
        for level in self._alike(prefill_share, context):
            smaller = level.running >= _SMALLEST_BATCH / 2 and running >= _GROWTH * level.running
            if smaller and tokens_per_second < _GAIN * level.tokens_per_second:
                return Saturation(level.running, level.tokens_per_second, running, tokens_per_second)
        return None

    def slowdown(self, running: float, tokens_per_second: float, prefill_share: float, context: float | None) -> Saturation | None:
        """What a batch no larger than *running* achieved once, if that is several times what is achieved now."""
        for level in self._alike(prefill_share, context):
            if level.running <= running * _GAIN and _CRAWL * tokens_per_second <= level.best:
                return Saturation(level.running, level.best, running, tokens_per_second)
        return None

    def _alike(self, prefill_share: float, context: float | None) -> list[_Level]:
        """The levels seen often enough, lately and at the same kind of work, the smallest batch first."""
        newest = max((level.at for level in self._levels.values()), default=0.0)
        return sorted(
            (
                level
                for level in self._levels.values()
                if level.seen >= _ENOUGH
                and newest - level.at <= _FORGET_SECONDS
                and abs(level.prefill_share - prefill_share) <= _LIKE
                and (not context or not level.context or max(context, level.context) <= _LIKE_CONTEXT * min(context, level.context))
            ),
            key=lambda level: level.running,
        )


def _half_octave(value: float) -> int:
    return round(2 * math.log2(value)) if value > 0 else 0


def _tokens_between(before: Snapshot, after: Snapshot) -> tuple[float, float]:
    """Tokens computed: generated ones, and prompts less what the prefix cache gave. What is not reported counts as none."""
    generated = increase(before.generation_tokens, after.generation_tokens) or 0.0
    computed = increase(before.computed_prompt_tokens, after.computed_prompt_tokens)
    return generated, computed if computed is not None else increase(before.prompt_tokens, after.prompt_tokens) or 0.0


def work_of(window: Window) -> tuple[float, float, float] | None:
    """The smallest batch of the window, tokens computed per second, and the share of prompt tokens among them."""
    share, generated = prefill_share(window), rate(window.generation_tokens, window)
    if window.running is None or share is None or share >= 1 or generated is None:
        return None
    return window.running.low, generated / (1 - share), share
