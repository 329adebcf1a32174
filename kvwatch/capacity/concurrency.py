"""How many requests may run at once without preempting one another, and how that was worked out. Tokens in, requests out.

One formula for `plan --url`, `check` and the daemon's advice: the same server gets the same number from each.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.capacity.pool import HEADROOM, round_up_to_block, safe_sequences, sequences
from kvwatch.text import number, percent


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """How many sequences the pool lets run without preempting one another, and how that was worked out."""

    sequences: int
    arithmetic: str


def tokens_at_end(prompt: float, output: float, block_size: int | None) -> int:
    """Tokens a request occupies when its last one is written: prompt and output, in whole blocks."""
    return round_up_to_block(prompt + output, block_size)


def limit_by_end(pool: float, tokens: float) -> ConcurrencyLimit:
    """As many as fit when all have grown to ``tokens``: on average each is half an output short of it, which is the headroom."""
    return ConcurrencyLimit(sequences(pool, tokens), f"{number(pool)} KV tokens ÷ {number(tokens)} tokens per sequence at its end")


def limit_by_present_size(pool: float, tokens: float) -> ConcurrencyLimit:
    """As many as fit at the size they have now, where their end is not known: a fifth of the pool is left for what they grow."""
    return ConcurrencyLimit(
        safe_sequences(pool, tokens), f"{number(pool)} KV tokens ÷ {number(tokens)} tokens per sequence × {1 - HEADROOM:g}"
    )


def limit_by_share(share: float) -> ConcurrencyLimit:
    """The same where only the share of the pool that a running sequence holds is known (0..1)."""
    arithmetic = f"a running sequence holds {percent(share)} of the pool: 1 ÷ {share:.3f} × {1 - HEADROOM:g}"
    return ConcurrencyLimit(safe_sequences(1.0, share), arithmetic)
