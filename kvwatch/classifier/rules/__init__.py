"""One file per verdict; each is a pure function of `Signals`. `PRECEDENCE` is the closed order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvwatch.classifier.finding import Finding
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
from kvwatch.classifier.thresholds import Thresholds
from kvwatch.model import Cause, Signals, State

Rule = Callable[[Signals, Thresholds], Finding | None]

PRECEDENCE: Final[tuple[Rule, ...]] = (
    stalled.judge,  # frozen gauges look like anything else
    idle.judge,  # the windows remember what is over
    preempting.judge,  # evictions are the dearest trouble
    deferred.judge,  # these requests do not wait for capacity
    admission.judge,
    sequence_slots.judge,
    frontend.judge,
    step_budget.judge,
    compute.judge,
    healthy.judge,
)


def find(signals: Signals, thresholds: Thresholds) -> Finding:
    """The first rule that speaks; ``unknown``/``ambiguous`` when none does."""
    for judge in PRECEDENCE:
        finding = judge(signals, thresholds)
        if finding is not None:
            return finding
    return Finding(State.UNKNOWN, Cause.AMBIGUOUS, ("vLLM reports too few of its numbers to tell",))
