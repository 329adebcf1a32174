"""How many requests may run at once without preempting one another, and how that was worked out. Tokens in, requests out.

One formula for `plan --url`, `check`, the daemon's signals and its advice: the same sizes get the same number from each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvwatch.capacity.pool import HEADROOM, round_up_to_block, safe_sequences, sequences
from kvwatch.capacity.pool_fit import PoolShape
from kvwatch.capacity.spread import SPREAD, Held, Moments, held_while_growing
from kvwatch.text import number, percent

PREFILL_ONLY: Final = 1.0
"""Tokens a request generates on the prefill server of a pair."""
_SHARED_PREFIX: Final = 0.3
"""Share of prompt tokens found in the prefix cache from which prompts are taken to hold the same blocks together."""
_SMALLER_THAN_PROMPT: Final = 0.8
"""Part of a prompt below which a running sequence holds less than its own."""
_LONGER: Final = 1.05
"""Running sequences are longer than the mean request when they are by more than what sampling a gauge gets wrong."""


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """How many sequences the pool lets run without preempting one another, and how that was worked out."""

    sequences: int
    arithmetic: str


@dataclass(frozen=True, slots=True)
class SequenceSizes:
    """What is known of one engine's requests; ``None`` is not known. Means, in tokens unless said otherwise."""

    prompt: float | None = None
    """Of the prompts admitted lately."""
    output: float | None = None
    """Generated per finished request."""
    held: float | None = None
    """KV tokens a running sequence holds now, counted once where blocks are shared."""
    share: float | None = None
    """The same as a share of the pool (0..1)."""
    prefix_hits: float | None = None
    """Share of prompt tokens found in the prefix cache (0..1)."""
    block_size: int | None = None
    running: float | None = None
    """How many held that much each."""
    prompts: Moments | None = None
    """How prompts vary; ``None`` where nobody knows."""
    outputs: Moments | None = None

    @property
    def at_end(self) -> float | None:
        """KV tokens a sequence holds of its own when it is done growing; ``None`` while nothing has finished.

        The mean prompt and output, in whole blocks. But running sequences are not the mean ones: where lengths vary, or may, the long ones
        stay longest. So what they are seen to hold, halfway through their output, and the other half of it, where that is more. Where
        prompts share cached blocks, the prompt is the part of it that is not found in the cache.
        """
        if self.prompt is None or self.output is None:
            return None
        mean = tokens_at_end(self.prompt, self.output, self.block_size)
        if self.held is None:
            return mean
        if self.shared is not None:
            return mean - self.prompt * (self.prefix_hits or 0.0)
        if self._equally_long and self.prompts is not None and not self.prompts.variance:
            return mean
        of_those_running = self.held + self.output / 2
        return of_those_running if of_those_running > _LONGER * mean else mean

    @property
    def shared(self) -> float | None:
        """KV tokens that running sequences hold together: what is held beyond the own part of each, halfway through its output.

        At least the cached part of one prompt: in a storm sequences are younger than that. ``None`` where they share nothing: too little
        of the prompts is found in the prefix cache, or as much is held as without it.
        """
        if self.prompt is None or self.output is None or self.held is None or self.prefix_hits is None or self.running is None:
            return None
        if self.prefix_hits < _SHARED_PREFIX or self.held >= _SMALLER_THAN_PROMPT * self.prompt:
            return None
        cached = self.prompt * self.prefix_hits
        return max(cached, self.running * (self.held - (self.prompt - cached + self.output / 2)))

    @property
    def _equally_long(self) -> bool:
        """Whether all outputs are known to be of one length: requests that began together then end together."""
        return self.outputs is not None and not self.outputs.variance

    @property
    def at_any_moment(self) -> Held | None:
        """What a running sequence holds of its own, where outputs vary; ``None`` where they are equally long or nobody knows.

        Running sequences may be longer than those that finished, so what they are seen to hold counts, where that is more.
        """
        if self.prompt is None or self.outputs is None or self._equally_long:
            return None
        own = self.prompt if self.shared is None else self.prompt * (1 - (self.prefix_hits or 0.0))
        found = held_while_growing(own, 0.0 if self.prompts is None else self.prompts.variance, self.outputs, self.block_size or 0)
        if self.held is not None and self.shared is None and self.held > _LONGER * found.mean:
            return replace(found, mean=self.held)
        return found

    def part_of(self, pool: float) -> float | None:
        """Tokens of the *pool* that a sequence takes at its end, its part of what as many as fit share included."""
        end, shared = self.at_end, self.shared
        return end if end is None or not shared or shared >= pool else end * pool / (pool - shared)


def concurrency_limit(pool: float | None, sizes: SequenceSizes, shape: PoolShape | None = None) -> ConcurrencyLimit | None:
    """Sequences that may run at once in a *pool* of so many tokens without preempting one another; ``None`` where no size is known.

    With a *shape*, where requests hold blocks whatever their length, its blocks are counted and no tokens.

    Where outputs vary, as many as fit with what they hold at any moment and with what that varies by. Else
    as many as fit when all have grown to their end: on average each is half an output short of it, which is the headroom, and is far
    more than the one block vLLM keeps for itself. Where that end is not known, as many as fit as they are seen, with a fifth left free.
    """
    end, held = sizes.at_end, sizes.at_any_moment
    if shape is not None and shape.fixed and end:
        return _limit_by_blocks(shape, end)
    if pool and held is not None:
        return _limit_by_spread(pool, held, sizes.shared or 0.0)
    if pool and end:
        return limit_by_end(pool, end, sizes.shared or 0.0)
    if pool and sizes.held:
        return _limit_by_present_size(pool, sizes.held)
    return _limit_by_share(sizes.share) if sizes.share else None


def tokens_at_end(prompt: float, output: float, block_size: int | None) -> int:
    """Tokens a request occupies when its last one is written: prompt and output, in whole blocks."""
    return round_up_to_block(prompt + output, block_size)


def limit_by_end(pool: float, tokens: float, shared: float = 0.0) -> ConcurrencyLimit:
    """As many as fit beside what they share when all have grown to ``tokens`` of their own.

    On average each is half an output short of it, which is the headroom.
    """
    fit = sequences(max(0.0, pool - shared), tokens)
    return ConcurrencyLimit(fit, f"{_of_all(pool, shared)} ÷ {number(tokens)} tokens per sequence at its end")


def _limit_by_spread(pool: float, held: Held, shared: float) -> ConcurrencyLimit:
    """As many as fit beside what they share, at whatever stage of growth each is."""
    found = held.most(max(0.0, pool - shared))
    arithmetic = (
        f"{_of_all(pool, shared)} hold {found} sequences of {number(held.mean)} tokens and {SPREAD:g} standard deviations of their sum, "
        f"{SPREAD:g} × {number(held.deviation)} × √{found}"
    )
    return ConcurrencyLimit(found, arithmetic)


def _of_all(pool: float, shared: float) -> str:
    return f"({number(pool)} KV tokens - {number(shared)} shared)" if shared else f"{number(pool)} KV tokens"


def _limit_by_blocks(shape: PoolShape, tokens: float) -> ConcurrencyLimit:
    """The same in a pool whose requests hold blocks besides those of their tokens."""
    arithmetic = (
        f"{number(shape.blocks)} KV blocks ÷ {number(shape.blocks_of(tokens))} blocks per sequence at its end "
        f"({number(tokens)} tokens, and {number(shape.fixed)} blocks whatever its length)"
    )
    return ConcurrencyLimit(shape.sequences(tokens), arithmetic)


def _limit_by_present_size(pool: float, tokens: float) -> ConcurrencyLimit:
    """As many as fit at the size they have now, where their end is not known: a fifth of the pool is left for what they grow."""
    return ConcurrencyLimit(
        safe_sequences(pool, tokens), f"{number(pool)} KV tokens ÷ {number(tokens)} tokens per sequence × {1 - HEADROOM:g}"
    )


def _limit_by_share(share: float) -> ConcurrencyLimit:
    """The same where only the share of the pool that a running sequence holds is known (0..1)."""
    arithmetic = f"a running sequence holds {percent(share)} of the pool: 1 ÷ {share:.3f} × {1 - HEADROOM:g}"
    return ConcurrencyLimit(safe_sequences(1.0, share), arithmetic)
