"""What a usual request of a live server is: as `kvwatch check` sees it over a while, or by one page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvwatch.capacity.concurrency import ConcurrencyLimit
from kvwatch.model import Assessment, Signals
from kvwatch.plan.sources import Live
from kvwatch.text import number


@dataclass(frozen=True, slots=True)
class UsualRequest:
    """How long one is, and where that comes from."""

    tokens: float
    """KV tokens it holds when its last one is written."""
    source: str
    fits: ConcurrencyLimit | None = None
    """How many of them the pool holds by what was watched; ``None`` by one page."""


def usual_request(live: Live, watched: Sequence[Assessment]) -> UsualRequest | None:
    """By the last word on each engine of a server that was *watched*; by its page where no token came meanwhile. ``None`` is unknown."""
    signals = next((one.signals for one in watched if one.verdict.engine == live.engine), None)
    if signals is not None and signals.tokens_at_end is not None and signals.slow.generation_tokens:
        return UsualRequest(signals.tokens_at_end, f"as check counts it, over {number(signals.slow.seconds)} s", _limit(signals))
    if live.typical_tokens is None:
        return None
    return UsualRequest(live.typical_tokens, "by all that finished since the server started and what runs now")


def _limit(signals: Signals) -> ConcurrencyLimit | None:
    if signals.sustainable_sequences is None or signals.sustainable_arithmetic is None:
        return None
    return ConcurrencyLimit(signals.sustainable_sequences, signals.sustainable_arithmetic)
