"""``kv_bound``/``admission``: requests wait because the next prompt does not fit the free blocks."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Candidate, Number, Rule
from kvwatch.classifier.rules.numbers import FULLEST, QUEUE
from kvwatch.classifier.rules.pressure import (
    fullness,
    held_by_nobody,
    is_hot,
    is_pinned,
    next_prompt_does_not_fit,
    share_needed,
    share_of_steps_with_prefill,
    slots_alone_bind,
    stays_at_proven_ceiling,
)
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import counted, number, percent

_NEVER_RESTS: Final = 0.85
"""Share of the steps (0..1) with a prompt under way from which the processor, not the cache, keeps the next one out.
Lower: a full cache is called compute. The verdicts on the recordings are the same from 0.4 to 1."""


def judge(signals: Signals, _policy: Policy) -> Candidate | None:
    """A sustained queue, and at its fullest the cache had no room for the next admission.

    Where the slots were taken while there was room, or max_num_seqs is known and reached, more blocks alone would admit nobody; nor where
    the batch has stood at that count before with room beside it, and both limits have met since. A hot cache
    under a running count that swings says the same as missing room. And where a prompt is being computed in nearly every step, the next one
    could not be taken any sooner.
    """
    queue, full, needed = signals.recent.queue, fullness(signals), share_needed(signals)
    if not is_sustained(signals) or queue is None or full is None or (share_of_steps_with_prefill(signals) or 0.0) >= _NEVER_RESTS:
        return None
    waiting = f"{counted(queue.mean, 'request')} waiting"
    if next_prompt_does_not_fit(signals) and needed is not None and not _slots_bind_first(signals):
        pool = signals.capacity_tokens
        free, missing = (f"{number((1 - full) * pool)} KV tokens", number(needed * pool)) if pool else (percent(1 - full), percent(needed))
        reason = f"{free} free at the fullest moment, the next admission may need {missing}"
        return Candidate(State.KV_BOUND, Cause.ADMISSION, (waiting, reason, *held_by_nobody(signals)))
    if is_hot(signals) and not is_pinned(signals):
        running = signals.fast.running
        swings = f", running between {number(running.low)} and {number(running.peak)}" if running is not None else ""
        reason = f"KV cache at {percent(full)} at its fullest{swings}"
        return Candidate(State.KV_BOUND, Cause.ADMISSION, (waiting, reason, *held_by_nobody(signals)))
    return None


def _slots_bind_first(signals: Signals) -> bool:
    return slots_alone_bind(signals) or (signals.ceiling_known and is_pinned(signals)) or stays_at_proven_ceiling(signals)


RULE: Final = Rule(
    Cause.ADMISSION,
    (
        *QUEUE,
        FULLEST,
        Number("KV tokens for the next prompt", lambda s: s.next_prompt_tokens, number),
    ),
    judge,
)
