"""What one rule found at one moment, before time has confirmed it."""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.model import Cause, State


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate for the verdict: state, cause, and the numbers that decided, in words."""

    state: State
    cause: Cause
    evidence: tuple[str, ...]
    sustained: bool = False
    """The rule has had its own patience: nothing is gained by waiting for a second scrape that says so."""
