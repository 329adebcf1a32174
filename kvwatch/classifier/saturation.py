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


@dataclass(frozen=True, slots=True)
class Work:
    """What one window got done."""

    running: float
    """Its smallest batch."""
    generated: float
    """Tokens per second."""
    prefill_share: float
    """Share of prompts among all tokens computed, 0..1; below 1."""

    @property
    def tokens_per_second(self) -> float:
        """All tokens computed."""
        return self.generated / (1 - self.prefill_share)


@dataclass(slots=True)
class _Level:
    """What batches of about one size achieved: exponentially weighted means of tokens per second, and how often it was seen.

    The share of prompts follows from the means: prompts come in bursts, and the mean of their shares is not their share of the mean.
    """

    running: float
    generated: float
    prompt: float
    context: float
    seen: int
    at: float
    best: float
    """The highest mean of generated tokens per second that this level had…"""
    best_share: float
    """…and the share of prompts at that time."""

    @property
    def tokens_per_second(self) -> float:
        """All tokens computed."""
        return self.generated + self.prompt

    @property
    def prefill_share(self) -> float:
        """Share of prompts among them, 0..1; a level has seen some."""
        return self.prompt / self.tokens_per_second


_SMALLEST_BATCH: Final = 16.0
"""Below this the numbers of a few requests decide, not the processor."""
_GROWTH: Final = 1.8
"""The batch has grown at least so much since…"""
_GAIN: Final = 1.10
"""…and yields less than this factor of what the smaller one did."""
_LIKE: Final = 0.2
"""Prefill tokens are cheaper than decoded ones, so only like mixtures are compared: shares of prompt tokens this close…"""
_LIKE_FACTOR: Final = 1.5
"""…and shares of decoded ones within this factor: 98 % of prompts and 80 % are not alike. Longer contexts are dearer too, so it bounds the
shares of the pool that sequences hold as well."""
_CRAWL: Final = 4.0
"""A batch that yields less than one part in so many of what it did crawls (public reports: a fifth and much less)."""
_WEIGHT: Final = 0.2
"""Of the newest sample in a level's means. From 0.46 on one poll with twice the tokens decides; below 0.15 an engine that has become twice
as fast is not known to be after five polls (``test_curve``; no recording depends on it)."""
_ENOUGH: Final = 3
"""Samples of a level before it is compared: two may be of one prompt."""
_FORGET_SECONDS: Final = 3600.0
"""What was achieved an hour ago was another load, and perhaps another clock rate of the card."""


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
        seconds = after.at - before.at
        key = _half_octave(running), _half_octave(context)
        level = self._levels.get(key)
        if level is None or after.at - level.at > _FORGET_SECONDS:
            level = self._levels[key] = _Level(running, generated / seconds, prompt / seconds, context, 0, after.at, 0.0, 0.0)
        level.running += _WEIGHT * (running - level.running)
        level.generated += _WEIGHT * (generated / seconds - level.generated)
        level.prompt += _WEIGHT * (prompt / seconds - level.prompt)
        level.context += _WEIGHT * (context - level.context)
        level.seen, level.at = level.seen + 1, after.at
        if level.seen >= _ENOUGH and level.generated > level.best:
            level.best, level.best_share = level.generated, level.prefill_share

    def saturation(self, work: Work, context: float | None) -> Saturation | None:
        """The smaller batch that got as much of the same work done as *work*, if there was one."""
        if work.running < _SMALLEST_BATCH:
            return None
        for level in self._alike(context):
            smaller = level.running >= _SMALLEST_BATCH / 2 and work.running >= _GROWTH * level.running
            like = abs(level.prefill_share - work.prefill_share) <= _LIKE and _alike(1 - level.prefill_share, 1 - work.prefill_share)
            if smaller and like and work.tokens_per_second < _GAIN * level.tokens_per_second:
                return Saturation(level.running, level.tokens_per_second, work.running, work.tokens_per_second)
        return None

    def slowdown(self, work: Work, context: float | None) -> Saturation | None:
        """What a batch no larger than *work* generated once beside as many prompts, if that is several times as much."""
        for level in self._alike(context):
            no_more_prompts = work.prefill_share <= level.best_share + _LIKE
            if level.running <= work.running * _GAIN and no_more_prompts and _CRAWL * work.generated <= level.best:
                return Saturation(level.running, level.best, work.running, work.generated)
        return None

    def _alike(self, context: float | None) -> list[_Level]:
        """The levels seen often enough, lately and with contexts as long, the smallest batch first."""
        newest = max((level.at for level in self._levels.values()), default=0.0)
        return sorted(
            (
                level
                for level in self._levels.values()
                if level.seen >= _ENOUGH
                and newest - level.at <= _FORGET_SECONDS
                and (not context or not level.context or _alike(context, level.context))
            ),
            key=lambda level: level.running,
        )


def _alike(one: float, other: float) -> bool:
    return max(one, other) <= _LIKE_FACTOR * min(one, other)


def _half_octave(value: float) -> int:
    return round(2 * math.log2(value)) if value > 0 else 0


def _tokens_between(before: Snapshot, after: Snapshot) -> tuple[float, float]:
    """Tokens computed: generated ones, and prompts less what the prefix cache gave. What is not reported counts as none."""
    generated = increase(before.generation_tokens, after.generation_tokens) or 0.0
    computed = increase(before.computed_prompt_tokens, after.computed_prompt_tokens)
    return generated, computed if computed is not None else increase(before.prompt_tokens, after.prompt_tokens) or 0.0


def work_of(window: Window) -> Work | None:
    """The work of a window; ``None`` where it is not known or nothing came out."""
    share, generated = prefill_share(window), rate(window.generation_tokens, window)
    if window.running is None or share is None or share >= 1 or generated is None:
        return None
    return Work(window.running.low, generated, share)
