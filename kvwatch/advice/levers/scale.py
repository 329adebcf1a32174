"""Levers on how many servers there are, and on how the load is spread over what there is."""

from __future__ import annotations

import math
from typing import Final

from kvwatch.advice.inputs import AdviceInputs
from kvwatch.advice.neighbours import Peers, has_room
from kvwatch.model import Change
from kvwatch.text import counted, number, percent

_FULL_DEMAND: Final = 1.0
"""Times the pool, or the slots: up to 1 what runs and waits fits at once."""
_BACKLOG: Final = 4.0
"""Past this, the queue says more of how long the overload has lasted than of how large it is."""
_ARRIVALS: Final = "look up how many requests arrive a second and how many finish, their quotient is the number of replicas"
_WELL_USED: Final = 0.85
"""Peak usage (0..1) of a cache that is used well. The limit is counted by sequences that have all grown to their end: with requests of
300/200 and 600/400 tokens the peak is then about 0.9, with answers nine times their prompts it is about 0.7."""


def load_out_of_balance(inputs: AdviceInputs) -> Change | None:
    """Other ranks of this server, or else other replicas, have room: the load is not spread, and another server would not spread it."""
    if has_room(inputs.signals):
        return None  # nothing waits here that could run elsewhere
    ranks, replicas = inputs.neighbours.ranks, inputs.neighbours.replicas.doing_what(inputs.signals)
    return _balance(
        inputs,
        ranks,
        lever="balance between the ranks",
        others=f"{counted(len(ranks.engines) - 1, 'other rank')} of this server",
        look_up="how requests are spread (sticky sessions, prefix affinity, one rank's port)",
    ) or _balance(
        inputs,
        replicas,
        lever="balance between the replicas",
        others=f"{counted(len(replicas.engines), 'other replica')} of this model",
        look_up="how requests are spread (sticky sessions, prefix affinity, a replica out of rotation)",
    )


def _balance(inputs: AdviceInputs, them: Peers, *, lever: str, others: str, look_up: str) -> Change | None:
    usages = them.with_room
    if not usages:
        return None
    return Change(
        lever=lever,
        reason=f"{len(usages)} of the {others}, at {percent(usages[0])} of its cache or less, have nobody waiting: look up {look_up}",
        effect="what waits here runs there",
        caution="before another replica: the room is there already",
        gain=None if (waiting := inputs.signals.fast.waiting) is None else waiting.mean,
    )


def replicas_for_kv(inputs: AdviceInputs) -> Change | None:
    """More KV is wanted than one pool holds: scale out on KV demand, not on GPU utilisation."""
    demand = inputs.signals.demand_ratio
    if demand is None or demand <= _FULL_DEMAND or not inputs.cache_is_used or load_out_of_balance(inputs) is not None:
        return None
    wanted = f"running and waiting requests want {demand:.1f} times the pool of this engine"
    backlog = demand > _BACKLOG
    return Change(
        lever="replicas",
        current="1",
        proposed=None if backlog else str(math.ceil(demand)),
        reason=f"{wanted}, most of it a backlog: {_ARRIVALS}" if backlog else f"{wanted} at once",
        effect="each replica brings its own pool; tensor parallelism brings more than its share, as the weights are split too",
        caution="scale out on KV demand, not on GPU utilisation; each costs another GPU",
        gain=inputs.left_out,
    )


def replicas_of_a_full_server(inputs: AdviceInputs) -> Change | None:
    """The limit was lowered as advised and preemptions ended: what still waits needs another server."""
    limit = None if inputs.followed is None else inputs.followed.limit
    if limit is None or not inputs.is_full or load_out_of_balance(inputs) is not None:
        return None
    ratio = inputs.wanted / limit
    if ratio <= _FULL_DEMAND:
        return None
    backlog = ratio > _BACKLOG
    usage = inputs.signals.slow.kv_usage
    unused = (
        f": at most {percent(usage.peak)} of its cache was used, the rest is for when they are long at once"
        if (usage is not None and usage.peak < _WELL_USED)
        else ""
    )
    wanted = f"{number(inputs.wanted)} sequences want to run and {limit} may: this server is full, nothing more to gain here{unused}"
    return Change(
        lever="replicas",
        current="1",
        proposed=None if backlog else str(math.ceil(ratio)),
        reason=f"{wanted}; most of it a backlog: {_ARRIVALS}" if backlog else wanted,
        effect="each replica brings its own pool; tensor parallelism brings more than its share, as the weights are split too",
        caution="scale out on KV demand, not on GPU utilisation",
    )


def replicas_for_compute(inputs: AdviceInputs) -> Change | None:
    """The processor is the limit: only another one, or a faster one, does more."""
    if load_out_of_balance(inputs) is not None:
        return None
    found = inputs.signals.saturation
    count = math.ceil(inputs.wanted / found.running_then) if found is not None and found.running_then > 0 else None
    if count is not None and count > 1:
        knee = number(found.running_then if found else 0)
        reason = f"{number(inputs.wanted)} sequences want to run, and past {knee} a larger batch does no more"
    else:
        count = None
        reason = _ARRIVALS
    return Change(
        lever="replicas",
        current="1",
        proposed=None if count is None else str(count),
        reason=reason,
        effect="another processor; with long prompts a prefill/decode split or tensor parallelism also shorten the step",
        caution="a faster GPU or a smaller model does the same; no flag makes a busy processor quicker",
    )


def more_room_soon(inputs: AdviceInputs) -> Change | None:
    """Nothing waits, but the cache is full on average: the next burst will not fit."""
    usage = inputs.signals.slow.kv_usage
    if usage is None:
        return None
    free = inputs.signals.free_tokens
    left = f", {number(free)} KV tokens are free" if free is not None else ""
    return Change(
        lever="replicas",
        reason=f"the cache is {percent(usage.mean)} full on average{left}: look up the daily peak before deciding how many",
        effect="room for the next burst",
        caution="nothing is wrong now: nothing waits and nothing is preempted",
    )
