"""``compute_bound``/``deferred``: requests wait for remote KV, LoRA or grammar, not for capacity."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Candidate, Number, Rule
from kvwatch.classifier.rules.numbers import mean
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import number


def judge(signals: Signals, _policy: Policy) -> Candidate | None:
    """At least one request is deferred on average, and they are the larger part of the queue."""
    waiting, deferred = signals.recent.waiting, signals.recent.deferred
    if waiting is None or deferred is None or deferred.mean < 1 or deferred.low <= 0 or deferred.mean < waiting.mean / 2:
        return None
    evidence = f"{number(deferred.mean)} of {number(waiting.mean)} waiting requests wait for remote KV, LoRA or grammar, not for capacity"
    return Candidate(State.COMPUTE_BOUND, Cause.DEFERRED, (evidence,))


RULE: Final = Rule(
    Cause.DEFERRED,
    (
        Number("deferred", lambda s: mean(s.recent.deferred), number),
        Number("waiting", lambda s: mean(s.recent.waiting), number),
    ),
    judge,
)
