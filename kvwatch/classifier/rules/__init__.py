"""One file per verdict; each is a pure function of `Signals`. `PRECEDENCE` is the closed order in which they are asked."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Candidate, Rule
from kvwatch.classifier.rules import (
    admission,
    compute,
    deferred,
    frontend,
    healthy,
    idle,
    preempting,
    sequence_slots,
    stalled,
    step_budget,
)
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import counted

PRECEDENCE: Final[tuple[Rule, ...]] = (
    stalled.RULE,  # frozen gauges look like anything else
    idle.RULE,  # the windows remember what is over
    preempting.RULE,  # preemptions cost most: work is done twice
    deferred.RULE,  # these requests do not wait for capacity
    admission.RULE,
    step_budget.RULE,
    sequence_slots.RULE,
    frontend.RULE,
    compute.RULE,
    healthy.RULE,
)


def find(signals: Signals, policy: Policy) -> Candidate:
    """The first rule that speaks; ``unknown``/``ambiguous`` when none does."""
    for rule in PRECEDENCE:
        candidate = rule.judge(signals, policy)
        if candidate is not None:
            return candidate
    return Candidate(State.UNKNOWN, Cause.AMBIGUOUS, _missing(signals))


def _missing(signals: Signals) -> tuple[str, ...]:
    """What would have been needed to tell."""
    numbers = {
        "running requests": signals.recent.running,
        "waiting requests": signals.recent.waiting,
        "KV cache usage": signals.fast.kv_usage,
    }
    missing = [name for name, value in numbers.items() if value is None]
    queue = signals.recent.queue
    waits = (f"{counted(queue.mean, 'request')} waiting",) if queue is not None and queue.mean > 0 else ()
    return (*waits, f"vLLM reports too few of its numbers to tell; missing: {', '.join(missing)}")
