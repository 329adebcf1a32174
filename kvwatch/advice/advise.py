"""Verdict, signals and what is known of the configuration become an ordered list of changes: best first, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from types import MappingProxyType
from typing import Final

from kvwatch.advice.followed import Followed
from kvwatch.advice.inputs import AdviceInputs
from kvwatch.advice.levers import around, memory, scale, slots
from kvwatch.advice.neighbours import NOBODY, Neighbours
from kvwatch.config.policy import KnownConfig
from kvwatch.model import Cause, Change, EngineConfig, Signals, State, Verdict
from kvwatch.text import counted

Lever = Callable[[AdviceInputs], Change | None]


def _if_cache_is_next(lever: Lever) -> Lever:
    """The lever, where the cache is full right behind the slots: with room to spare, a larger one would not be used."""

    @wraps(lever)
    def limited(inputs: AdviceInputs) -> Change | None:
        return None if inputs.room is None or inputs.room.sequences >= inputs.wanted or slots.more_sequences(inputs) else lever(inputs)

    return limited


_ROOM_IN_THE_CACHE: Final[tuple[Lever, ...]] = (
    memory.more_memory,
    memory.eight_bit_kv,
    memory.prefix_caching,
    scale.load_out_of_balance,
    scale.replicas_for_kv,
    memory.smaller_weights,
    memory.shorter_limit,
    memory.shared_beginnings,
)
LEVERS: Final[Mapping[Cause, tuple[Lever, ...]]] = MappingProxyType(
    {
        Cause.OK: (),
        Cause.IDLE: (),
        Cause.KV_HIGH: (scale.more_room_soon,),
        Cause.PREEMPTING: (scale.replicas_of_a_full_server, slots.fewer_sequences, memory.blocks_kept_free, *_ROOM_IN_THE_CACHE),
        Cause.ADMISSION: (scale.replicas_of_a_full_server, *_ROOM_IN_THE_CACHE),
        Cause.SEQUENCE_SLOTS: (
            scale.replicas_of_a_full_server,
            slots.more_sequences,
            scale.load_out_of_balance,
            scale.replicas_for_kv,
            _if_cache_is_next(memory.more_memory),
            _if_cache_is_next(memory.eight_bit_kv),
        ),
        Cause.STEP_BUDGET: (
            around.chunked_prefill,
            slots.larger_step,
            memory.prefix_caching,
            memory.shared_beginnings,
            scale.load_out_of_balance,
            scale.replicas_for_compute,
        ),
        Cause.COMPUTE: (scale.load_out_of_balance, scale.replicas_for_compute, slots.smaller_step, slots.batch_that_still_pays),
        Cause.FRONTEND: (around.more_api_servers, around.coarser_stream, around.look_at_the_host),
        Cause.DEFERRED: (around.what_they_wait_for,),
        Cause.STALLED: (memory.limit_to_pool, around.silent_peer, around.restart),
    }
)
"""Causes of which kvwatch can see the numbers, and their levers; `_in_order` puts the gains before one another."""
_FIRST: Final[frozenset[Lever]] = frozenset({slots.fewer_sequences, slots.more_sequences, scale.replicas_of_a_full_server})
"""The first two set right the limit that binds and cost nothing, the third says that this is done: before what costs a card or an
evaluation, whatever that gains."""
_LEAST_GAIN: Final = 1.0
"""Sequences: below it a gain is within what a mean size gets wrong."""


def advise(
    verdict: Verdict,
    signals: Signals | None,
    config: EngineConfig,
    known: KnownConfig,
    *,
    followed: Followed | None = None,
    neighbours: Neighbours = NOBODY,
) -> tuple[Change, ...]:
    """What to change, best first; one change at a time, then measure again.

    Empty where nothing holds the engine back, where waiting is all there is to do, or where no number is there to reason
    from (*signals* is ``None``). Each lever appears once. ``proposed`` is ``None`` where the evidence for a number is missing: then
    ``reason`` says what to look up. *neighbours* serve the same model. Where earlier advice was *followed*, the first
    change begins with what came of it.
    """
    if verdict.state is State.UNKNOWN:
        change = around.let_kvwatch_see(verdict.cause)
        return () if change is None else (change,)
    if signals is None:
        return ()
    inputs = AdviceInputs(verdict, signals, config, known, followed, neighbours)
    changes = _in_order([(lever, change) for lever in LEVERS[verdict.cause] if (change := lever(inputs)) is not None])
    first, *others = changes or (None,)
    if first is None:
        return ()
    return (first if followed is None else replace(first, reason=f"{followed}; {first.reason}"), *others)


def _in_order(found: list[tuple[Lever, Change]]) -> tuple[Change, ...]:
    """Each lever once: first those of `_FIRST`, then by gain, then those whose gain cannot be computed, as they stand in `LEVERS`."""
    worth = [(lever, change) for lever, change in found if change.gain is None or change.gain >= _LEAST_GAIN]
    worth.sort(key=lambda one: (one[0] not in _FIRST, -(one[1].gain or 0.0)))
    once: dict[str, Change] = {}
    for _, change in worth:
        once.setdefault(change.lever, change)
    return tuple(_with_gain(change) for change in once.values())


def _with_gain(change: Change) -> Change:
    """The same change, its effect beginning with how many more requests run, where that is known."""
    if change.gain is None:
        return change
    return replace(change, effect=f"about {counted(round(change.gain), 'more request')} run: {change.effect}")
