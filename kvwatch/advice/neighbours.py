"""What else serves the model of an engine, and how much of it has room. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kvwatch.capacity.concurrency import PREFILL_ONLY
from kvwatch.model import Signals

_ROOMY: Final = 0.5
"""Mean usage of its cache (0..1) up to which a rank or replica could take over what another one holds."""


@dataclass(frozen=True)
class Peers:
    """Engines that a load can be spread over. They are looked through once, however many of them ask: hundreds may, at every scrape."""

    engines: tuple[Signals, ...] = ()

    @cached_property
    def with_room(self) -> tuple[float, ...]:
        """Usage of the cache (0..1) of each that could take over what another one holds, the highest first."""
        return tuple(sorted((usage for one in self.engines if (usage := _room(one)) is not None), reverse=True))

    def doing_what(self, engine: Signals) -> Peers:
        """Those that answer whole requests as *engine* does, or are the same side of a pair, as far as requests have told."""
        return Peers() if engine.output_tokens is None else self._by_side[engine.output_tokens > PREFILL_ONLY]

    @cached_property
    def _by_side(self) -> Mapping[bool, Peers]:
        told = [(one.output_tokens > PREFILL_ONLY, one) for one in self.engines if one.output_tokens is not None]
        return {side: Peers(tuple(one for its, one in told if its is side)) for side in (True, False)}


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What else serves the same model."""

    ranks: Peers = Peers()
    """The engines of the same server, its data-parallel ranks, the one that asks among them."""
    replicas: Peers = Peers()
    """Engines of other servers that were named together with this one."""


NOBODY: Final = Neighbours()


def has_room(signals: Signals) -> bool:
    """Nobody has waited there for a window, and at most half of its cache is used."""
    return _room(signals) is not None


def _room(signals: Signals) -> float | None:
    """The usage of the cache, where there is room."""
    usage, waiting = signals.slow.kv_usage, signals.slow.waiting
    return usage.mean if usage is not None and usage.mean <= _ROOMY and waiting is not None and waiting.peak == 0 else None
