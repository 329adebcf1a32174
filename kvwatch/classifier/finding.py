"""What one rule found at one moment, before time has confirmed it."""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.model import Cause, State


@dataclass(frozen=True, slots=True)
class Finding:
    """A candidate for the verdict: state, cause, and the numbers that decided, in words."""

    state: State
    cause: Cause
    evidence: tuple[str, ...]


def number(value: float) -> str:
    """A count for a person: thousands apart, one decimal only below ten where it says something."""
    if abs(value) < 10 and round(value, 1) != round(value):  # noqa: PLR2004 - the usual place to stop counting decimals
        return f"{value:.1f}"
    return f"{value:,.0f}".replace(",", " ")


def counted(value: float, noun: str) -> str:
    """``1 eviction``, ``12 requests``; *noun* takes an s."""
    shown = number(value)
    return f"{shown} {noun}" if shown == "1" else f"{shown} {noun}s"


def percent(ratio: float) -> str:
    """A ratio for a person: ``0.953`` is ``95 %``, ``0.013`` is ``1.3 %``."""
    return f"{ratio * 100:.1f} %" if 0 < ratio < 0.1 else f"{ratio * 100:.0f} %"  # noqa: PLR2004 - below ten per cent a decimal counts
