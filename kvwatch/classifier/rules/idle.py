"""``healthy``/``idle``: no work."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Candidate, Number, Rule
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import number, percent


def judge(signals: Signals, _policy: Policy) -> Candidate | None:
    """Two scrapes in a row without a request: whatever the windows remember, nothing is held back now.

    Asked early, because after the clients have left the windows still hold the preemptions of before.
    """
    if not signals.idle:
        return None
    evidence = ["no request running or waiting"]
    if signals.held_at_rest:
        evidence.append(f"{percent(signals.held_at_rest)} of the KV cache is held although nothing runs: by transfers, or leaked")
    return Candidate(State.HEALTHY, Cause.IDLE, tuple(evidence))


RULE: Final = Rule(
    Cause.IDLE,
    (
        Number("running", lambda s: s.running, number),
        Number("waiting", lambda s: s.waiting, number),
    ),
    judge,
)
