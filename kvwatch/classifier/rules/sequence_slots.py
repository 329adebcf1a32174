"""``compute_bound``/``sequence_slots``: running sits at its ceiling while the cache has room."""

from __future__ import annotations

from kvwatch.classifier.candidate import Candidate
from kvwatch.classifier.rules.pressure import is_pinned
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import counted, number, percent


def judge(signals: Signals, _policy: Policy) -> Candidate | None:
    """A sustained queue in front of a running count that stands still."""
    if not is_sustained(signals) or not is_pinned(signals) or signals.running_ceiling is None or signals.recent.queue is None:
        return None
    evidence = [
        f"{counted(signals.recent.queue.mean, 'request')} waiting",
        f"running stands still at {number(signals.running_ceiling)}, as it does under a limit on sequences (--max-num-seqs)",
    ]
    if signals.fast.kv_usage is not None:
        evidence.append(f"KV cache at {percent(signals.fast.kv_usage.peak)} at its fullest, room for more")
    return Candidate(State.COMPUTE_BOUND, Cause.SEQUENCE_SLOTS, tuple(evidence))
