"""What a rule is, and what it says of one moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate for the verdict, before time has confirmed it: state, cause, and the numbers that decided, in words."""

    state: State
    cause: Cause
    evidence: tuple[str, ...]
    sustained: bool = False
    """The rule has had its own patience: nothing is gained by waiting for a second scrape that says so."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number a rule looks at, as ``check --all`` shows it."""

    name: str
    value: Callable[[Signals], float | None]
    """Where it stands; ``None`` while it is not known."""
    written: Callable[[float], str]
    """How it is written, e.g. `kvwatch.text.percent`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: the cause it looks for, the numbers it looks at, and what it says of the signals (``None``: nothing)."""

    cause: Cause
    numbers: tuple[Number, ...]
    judge: Callable[[Signals, Policy], Candidate | None]
