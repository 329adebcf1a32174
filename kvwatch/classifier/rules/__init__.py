"""One file per verdict; each is a pure function of `Signals`. `PRECEDENCE` is the closed order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvwatch.classifier.candidate import Candidate
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

Rule = Callable[[Signals, Policy], Candidate | None]

PRECEDENCE: Final[tuple[Rule, ...]] = (
    stalled.judge,  # frozen gauges look like anything else
    idle.judge,  # the windows remember what is over
    preempting.judge,  # preemptions are the dearest trouble
    deferred.judge,  # these requests do not wait for capacity
    admission.judge,
    step_budget.judge,
    sequence_slots.judge,
    frontend.judge,
    compute.judge,
    healthy.judge,
)


def find(signals: Signals, policy: Policy) -> Candidate:
    """The first rule that speaks; ``unknown``/``ambiguous`` when none does."""
    for judge in PRECEDENCE:
        finding = judge(signals, policy)
        if finding is not None:
            return finding
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
