"""The times every alert is made of, in seconds. What an alert adds of its own is its ``for``, in its file.

What they guarantee is measured by a test and stands in docs/alerts.md as a table.
"""

from __future__ import annotations

from typing import Final

EVIDENCE_SECONDS: Final = 90.0
"""How long the last answer stands for polls that are lost after it.

Longer: more lost polls in a row (six at a 15 s poll) leave a pending alert pending, and an alert of a server that fell silent stays longer.
It is shorter than the ``for`` of every warning, so one answer alone makes none fire, unless polls are 30 s apart and more.
"""

_FEWEST_POLLS: Final = 4
"""Polls that fit into each of these times, however rare they are."""

HOLD_SECONDS: Final = 60.0
"""How long a warning outlives its condition. Longer: fewer warnings split by a dip; shorter: its end is told sooner.

A page has no such time, for it must not stand beside a state that says the engine is well. A storm that dips below its ratio while the
cache still binds goes on for `EVIDENCE_SECONDS`: five preemptions in two minutes are 24 s apart on average, so its dips are shorter.
"""


def at_least(seconds: float, interval: float) -> float:
    """*seconds*, or longer where polls every *interval* seconds are so rare that few of them fit in."""
    return max(seconds, _FEWEST_POLLS * interval)
