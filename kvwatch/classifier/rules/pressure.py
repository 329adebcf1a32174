"""Whether the cache is the thing that has no room: asked by the rules that explain a queue or a preemption.

Usage is sampled after a step, so it dips whenever a request has just left or been preempted; only the fullest moment of
the window says what was possible.
"""

from __future__ import annotations

from typing import Final

from kvwatch.model import Signals
from kvwatch.text import number, percent

_HOT: Final = 0.90
"""KV usage (0..1) at the fullest moment that counts as nearly full. Lower: a queue for slots is called one for blocks."""
_LONGER_THAN_MEAN: Final = 1.5
"""The request at the head of a blocked queue is longer than the mean one, for short ones pass sooner. Nearer a tie, blocks are named before
slots: with more slots the next one would be preempted (``limits_meet_10_v032``; slots from 1.6 on: ``shared_prefix_v032``)."""
_PROMPTS_AT_ONCE: Final = 2.5
"""Sequences in their prefill; vLLM takes prompts one after the other, so it is one and what sampling a gauge adds.
Higher: several API servers, each of which counts the steps, look like a processor that never rests."""
_HALF_FULL: Final = 0.50
"""KV usage (0..1) at the fullest moment below which no preemption is for want of blocks. Lower: resets of the prefix cache are taken for a
storm; higher: a rank whose victims held much is called well (``dp2_one_starved`` changes at 0.4 and at 0.9)."""
_OVER: Final = 4.0
"""Seconds of a cool cache without a queue: two polls at the default interval; with the time to leave a state, 15 s after the end."""
_MOSTLY_AT_CEILING: Final = 0.4
"""Share of the samples with a queue (0..1). Higher: slots refilled between two samples are overlooked (``compute`` changes at 0.9)."""
_MOSTLY_AT_PROVEN: Final = 0.5
"""Share of the samples with a queue at a ceiling that is known to be one; below, blocks keep the batch smaller than the slots would."""
_BATCH_AT_CEILING: Final = 0.9
"""Part of the ceiling that the sequences which got tokens must reach: some of a full batch are in their prefill."""


def fullness(signals: Signals) -> float | None:
    """How full the cache really got, 0..1: the fullest sample, or what the batches that ran must have held.

    Gauges are set after a step, so during a long prefill step they still show the moment before it, and a scrape is most
    likely to fall into just such a step. The counters do not have that bias: sequences held x share per sequence, and no more of them than
    ever ran.
    """
    usage = signals.fast.kv_usage
    if usage is None:
        return None
    count, ceiling = signals.sequences_held or 0.0, signals.running_ceiling
    held = (count if ceiling is None else min(count, ceiling)) * (signals.sequence_share or 0.0)
    return max(usage.peak, min(1.0, held))


def share_needed(signals: Signals) -> float | None:
    """Share of the pool that the request at the head of the queue is expected to need.

    Running sequences tell: on average each holds its prompt and half of its output, shared blocks once among all of them. Where no prompt
    was admitted lately, the head needs what one of them holds; where requests were preempted lately, a victim is at the head and needs its
    prompt and all of its output so far. Sequences in their prefill hold less than they will: the uncached part of a prompt is the least.
    """
    own, prompt, output = signals.sequence_share, signals.next_prompt_tokens, signals.output_tokens
    uncached = _uncached_share(signals)
    if own is None:
        return _LONGER_THAN_MEAN * uncached or None
    part = prompt / (prompt + output / 2) if prompt and output is not None and not signals.preempted_lately else 1.0
    return _LONGER_THAN_MEAN * max(own * part, uncached)


def _uncached_share(signals: Signals) -> float:
    """Share of the pool that the uncached part of a mean prompt takes; 0 where that is not known."""
    prompt, pool = signals.next_prompt_tokens, signals.capacity_tokens
    return prompt * (1 - (signals.prefix_hit_ratio or 0.0)) / pool if prompt and pool else 0.0


def next_prompt_does_not_fit(signals: Signals) -> bool:
    """At its fullest the cache had no room for one more request (vLLM admits a prompt only if all of it fits)."""
    full, needed = fullness(signals), share_needed(signals)
    return full is not None and needed is not None and 1 - full < needed


def is_hot(signals: Signals) -> bool:
    """The cache was nearly full at its fullest."""
    full = fullness(signals)
    return full is not None and full >= _HOT


def has_plenty_of_room(signals: Signals) -> bool:
    """Even with one more sequence the cache was far from full, and at no moment half full.

    A preemption frees what its victim held, and after a wave of requests has ended together a sample may catch a cache
    that was full a moment before.
    """
    full = fullness(signals)
    return full is not None and full < _HALF_FULL and full + (signals.sequence_share or 0.0) < _HOT


def is_over(signals: Signals) -> bool:
    """For several seconds nobody waited or was preempted, and the cache was cool: what the windows remember does not happen now.

    For longer than its longest step, because between two steps all gauges show the moment before (``real_few_long``).
    """
    return signals.cool_seconds is not None and signals.cool_seconds >= max(_OVER, signals.longest_step)


def share_of_steps_with_prefill(signals: Signals) -> float | None:
    """How often a prompt was under way, 0..1: prompts are taken one after the other, so it is the sequences in their prefill.

    Where many more seem to be under way, several API servers have counted each step, and the share is not known. Where no prompt has come
    to its first token, what is computed is not new.
    """
    prefilling = signals.sequences_prefilling
    if prefilling is None or prefilling > _PROMPTS_AT_ONCE or not signals.fast.prompt_tokens:
        return None
    return min(1.0, prefilling)


def stands_at_ceiling(signals: Signals) -> bool:
    """While requests wait, most samples find `running` at the highest count ever seen: a slot is refilled within a step or two."""
    return signals.at_ceiling_share is not None and signals.at_ceiling_share >= _MOSTLY_AT_CEILING


def slots_are_taken(signals: Signals) -> bool:
    """The batch stands at its ceiling, and where nobody said which one that is, some sample with it reached the highest count ever seen.

    A batch that blocks keep small stays a few below a count that it once had for a moment (``report_wide_full``).
    """
    running, ceiling = signals.fast.running, signals.running_ceiling
    if running is None or ceiling is None or not stands_at_ceiling(signals):
        return False
    return signals.ceiling_known or running.peak >= ceiling


def slots_alone_bind(signals: Signals) -> bool:
    """The batch stands at its ceiling, and at some moment there was room for the next admission: more blocks would not have let it in.

    Room that running sequences still need for the rest of their prompts is none: while one is computed, the next waits for the step.
    """
    low, full, needed = signals.usage_at_ceiling, fullness(signals), share_needed(signals)
    if low is None or full is None or needed is None or not is_pinned(signals):
        return False
    prompts = (signals.running_ceiling or 0.0) * _uncached_share(signals)
    return 1 - max(low, min(full, prompts)) >= needed


def stays_at_proven_ceiling(signals: Signals) -> bool:
    """Where slots alone once bound and no larger batch was seen since, and most samples with a queue find the batch there again."""
    return signals.ceiling_proven and (signals.at_ceiling_share or 0.0) > _MOSTLY_AT_PROVEN


def is_pinned(signals: Signals) -> bool:
    """While requests wait, the batch is as large as it ever was: a limit on sequences, not on memory.

    Where requests come and go in waves the samples do not show it, but the sequences that got tokens do; before a hot cache they do not say
    which of the two limits holds them.
    """
    if is_hot(signals):
        return stands_at_ceiling(signals)
    ceiling, decoding = signals.running_ceiling, signals.sequences_decoding
    full = ceiling is not None and decoding is not None and decoding >= _BATCH_AT_CEILING * ceiling
    return full or stands_at_ceiling(signals)


def held_by_nobody(signals: Signals) -> tuple[str, ...]:
    """What is held that no request is known to need, in words; nothing where nothing is."""
    beyond, prompt, output = signals.held_beyond, signals.next_prompt_tokens, signals.output_tokens
    if beyond is None or prompt is None or output is None:
        return ()
    explained = f"requests of {number(prompt + output)} tokens, as those that finished, do not explain"
    return (f"{percent(beyond)} of the KV cache is held that {explained}: by a leak, transfers, or a few far longer ones",)
