"""Whether a bigger batch still gets more done: what this engine achieved at each batch size since it started.

By Little's law tokens per second are the batch size over the time a token takes, so this is a property of the processor
and of the work, not of the load offered: below the limit a larger batch yields more tokens, at the limit it only makes
each of them later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvwatch.classifier.windows import increase
from kvwatch.model import Saturation, Snapshot

_SMALLEST_BATCH: Final = 16.0
"""Below this the numbers of a few requests decide, not the processor."""
_GROWTH: Final = 1.8
"""The batch has grown at least so much since…"""
_GAIN: Final = 1.10
"""…and yields less than this factor of what the smaller one did."""
_LIKE: Final = 0.2
"""Prefill tokens are cheaper than decoded ones, so only like mixtures are compared: shares of prompt tokens this close."""
_WEIGHT: Final = 0.2
_ENOUGH: Final = 3


@dataclass(slots=True)
class _Level:
    """What batches of about one size achieved: exponentially weighted means and how often it was seen."""

    running: float
    tokens_per_second: float
    prefill_share: float
    seen: int


class ThroughputCurve:
    """Tokens per second by batch size, half an octave a level."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}

    def note(self, before: Snapshot, after: Snapshot) -> None:
        """Learn from two snapshots in a row (no restart between them)."""
        if not before.running or not after.running or after.at <= before.at:
            return
        generated, prompt = _tokens_between(before, after)
        if generated + prompt <= 0:
            return
        running = (before.running + after.running) / 2
        rate, share = (generated + prompt) / (after.at - before.at), prompt / (generated + prompt)
        level = self._levels.setdefault(round(2 * math.log2(running)), _Level(running, rate, share, 0))
        level.running += _WEIGHT * (running - level.running)
        level.tokens_per_second += _WEIGHT * (rate - level.tokens_per_second)
        level.prefill_share += _WEIGHT * (share - level.prefill_share)
        level.seen += 1

    def saturation(self, running: float, tokens_per_second: float, prefill_share: float) -> Saturation | None:
        """The smaller batch that got as much of the same work done as *running* sequences do now, if there was one."""
        if running < _SMALLEST_BATCH:
            return None
        for level in sorted(self._levels.values(), key=lambda known: known.running):
            known = level.seen >= _ENOUGH and level.running >= _SMALLEST_BATCH / 2
            alike = abs(level.prefill_share - prefill_share) <= _LIKE
            if known and alike and running >= _GROWTH * level.running and tokens_per_second < _GAIN * level.tokens_per_second:
                return Saturation(level.running, level.tokens_per_second, running, tokens_per_second)
        return None


def _tokens_between(before: Snapshot, after: Snapshot) -> tuple[float, float]:
    """Tokens computed: generated ones, and prompts less what the prefix cache gave. What is not reported counts as none."""
    generated = increase(before.generation_tokens, after.generation_tokens) or 0.0
    computed = increase(before.computed_prompt_tokens, after.computed_prompt_tokens)
    return generated, computed if computed is not None else increase(before.prompt_tokens, after.prompt_tokens) or 0.0
