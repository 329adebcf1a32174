"""``check --all``: every rule with what it says at this moment, or the numbers that left it silent. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kvwatch.classifier.rule import Number
from kvwatch.classifier.rules import PRECEDENCE
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals

Row = tuple[Cause, str]
"""The cause a rule looks for, and what it says or why it is silent."""


def asked(signals: Signals, policy: Policy) -> Iterator[Row]:
    """Every rule in the order of asking; the first that speaks decides, once it has spoken for long enough."""
    decided = False
    for rule in PRECEDENCE:
        found = rule.judge(signals, policy)
        if found is None:
            seen = ", ".join(f"{one.name} {_written(one, signals)}" for one in rule.numbers)
            yield rule.cause, f"silent: looks for “{rule.cause.meaning.rstrip('.')}”, and saw {seen}"
        else:
            how = "outranked by the rule above, else " if decided else ""
            yield rule.cause, f"{how}says {found.state} / {found.cause}: {'; '.join(found.evidence)}"
            decided = True


def _written(number: Number, signals: Signals) -> str:
    value = number.value(signals)
    return "not known" if value is None else number.written(value)
