"""Whether a bigger batch still gets more done: what this engine achieved at each batch size since it started.

By Little's law tokens per second are the batch size over the time a token takes, so this is a property of the processor
and of the work, not of the load offered: below the limit a larger batch yields more tokens, at the limit it only makes
each of them later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvwatch.model import Saturation, Snapshot

_SMALLEST_BATCH: Final = 16.0
"""Below this the numbers of a few requests decide, not the processor."""
_GROWTH: Final = 1.8
"""The batch has grown at least so much since…"""
_GAIN: Final = 1.10
"""…and yields less than this factor of what the smaller one did."""
_WEIGHT: Final = 0.2
_ENOUGH: Final = 3


@dataclass(slots=True)
class _Level:
    """What batches of about one size achieved: exponentially weighted means and how often it was seen."""

    running: float
    tokens_per_second: float
    seen: int


class ThroughputCurve:
    """Tokens per second by batch size, half an octave a level."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}

    def note(self, before: Snapshot, after: Snapshot) -> None:
        """Learn from two snapshots in a row (no restart between them)."""
        if not before.running or not after.running or after.at <= before.at:
            return
        tokens = _tokens_between(before, after)
        if tokens is None or tokens <= 0:
            return
        running = (before.running + after.running) / 2
        rate = tokens / (after.at - before.at)
        level = self._levels.setdefault(round(2 * math.log2(running)), _Level(running, rate, 0))
        level.running += _WEIGHT * (running - level.running)
        level.tokens_per_second += _WEIGHT * (rate - level.tokens_per_second)
        level.seen += 1

    def saturation(self, running: float, tokens_per_second: float) -> Saturation | None:
        """The smaller batch that got as much done as *running* sequences do now, if there was one."""
        if running < _SMALLEST_BATCH:
            return None
        for level in sorted(self._levels.values(), key=lambda known: known.running):
            grown = running >= _GROWTH * level.running
            if (
                grown
                and level.seen >= _ENOUGH
                and level.running >= _SMALLEST_BATCH / 2
                and tokens_per_second < _GAIN * level.tokens_per_second
            ):
                return Saturation(level.running, level.tokens_per_second, running, tokens_per_second)
        return None


def _tokens_between(before: Snapshot, after: Snapshot) -> float | None:
    """Tokens computed: generated ones, and prompts less what the prefix cache gave."""
    if before.generation_tokens is None or after.generation_tokens is None:
        return None
    generated = after.generation_tokens - before.generation_tokens
    for name in ("computed_prompt_tokens", "prompt_tokens"):
        old, new = getattr(before, name), getattr(after, name)
        if old is not None and new is not None:
            return float(generated + new - old)
    return generated
