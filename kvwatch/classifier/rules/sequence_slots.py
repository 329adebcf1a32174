"""``compute_bound``/``sequence_slots``: running sits at its ceiling while the cache has room."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Candidate, Number, Rule
from kvwatch.classifier.rules.numbers import QUEUE, RUNNING
from kvwatch.classifier.rules.pressure import fullness, is_pinned, next_prompt_does_not_fit, share_needed, stands_at_ceiling
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import counted, number, percent


def judge(signals: Signals, _policy: Policy) -> Candidate | None:
    """A sustained queue in front of a running count that stands at its ceiling."""
    if not is_sustained(signals) or not is_pinned(signals) or signals.running_ceiling is None or signals.recent.queue is None:
        return None
    evidence = [f"{counted(signals.recent.queue.mean, 'request')} waiting", _batch(signals, signals.running_ceiling)]
    full, needed = fullness(signals), share_needed(signals)
    if full is not None and needed is not None:
        room = f"KV cache at {percent(full)} at its fullest, one more may need {percent(needed)}"
        evidence.append(f"{room}: blocks are right behind the slots" if next_prompt_does_not_fit(signals) else room)
    return Candidate(State.COMPUTE_BOUND, Cause.SEQUENCE_SLOTS, tuple(evidence))


def _batch(signals: Signals, ceiling: float) -> str:
    """Where the batch stands: at what samples show, or where waves of requests hide it from them, at what the counters say."""
    if signals.ceiling_known:
        return f"running stands at {number(ceiling)}, max_num_seqs"
    limit = "as under a limit on sequences (--max-num-seqs)"
    if stands_at_ceiling(signals) and signals.fast.running is not None:
        return f"running stands at {number(signals.fast.running.peak)}, the most ever seen, {limit}"
    return f"{number(signals.sequences_decoding or ceiling)} sequences get tokens at a time, about the most there ever were, {limit}"


RULE: Final = Rule(
    Cause.SEQUENCE_SLOTS,
    (
        *QUEUE,
        RUNNING,
        Number("most ever or max_num_seqs", lambda s: s.running_ceiling, number),
    ),
    judge,
)
