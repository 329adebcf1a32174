"""What is advised stays until other evidence has stood for a while: no change of mind between neighbours. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kvwatch.model import Change, Verdict

HOLD_SECONDS: Final = 120.0
"""How long the evidence must ask for another number, or for another lever to come first: the slow window, over which sizes are means."""
BAND: Final = 0.25
"""Share by which a new number must differ from the one that was said: means over tens of requests of varied length differ by less."""
_LEAST: Final = 2
"""And by at least so many: from a few, one more or fewer is no other advice."""


class Lasting:
    """For how long something has held at every look."""

    def __init__(self) -> None:
        self._since: float | None = None

    def for_as_long_as(self, seconds: float, at: float, *, holds: bool) -> bool:
        """Take in whether it *holds* at *at* (seconds); whether it has held for *seconds* by then."""
        self._since = None if not holds else at if self._since is None else self._since
        return self._since is not None and at - self._since >= seconds


@dataclass(slots=True)
class _Said:
    change: Change
    at: float
    """When the lever was advised last."""
    since: float
    """When this was said first."""
    differs: Lasting = field(default_factory=Lasting)


class SteadyAdvice:
    """What was advised of one engine: its numbers by lever, and what came first."""

    def __init__(self) -> None:
        self._said: dict[tuple[object, str], _Said] = {}
        self._given: object = None
        self._limit: int | None = None
        self._first: Change | None = None
        self._about: object = None
        self._other_first = Lasting()

    def settle(
        self, at: float, verdict: Verdict, changes: tuple[Change, ...], given: object, limit: int | None = None
    ) -> tuple[Change, ...]:
        """The advice to give at *at* (seconds), where the evidence of this moment alone says *changes*.

        Another *given* (the configuration, and whether advice was followed) forgets everything said before. *limit* is how many sequences
        the cache is said to hold, which is held still itself: with another one the numbers are others too.
        """
        if given != self._given:
            self._said.clear()
            self._first, self._given = None, given
        if limit != self._limit:
            self._said.clear()
            self._limit = limit
        about = (verdict.state, verdict.cause)
        steady = tuple(self._number(at, about, change) for change in changes)
        return self._in_order(at, about, steady)

    def _number(self, at: float, about: object, change: Change) -> Change:
        """*change* with the number that was said, unless another one has been asked for long enough."""
        key = (about, change.lever)
        said = self._said.get(key)
        if said is None or at - said.at > HOLD_SECONDS or (_count(said.change) is None and at - said.since < HOLD_SECONDS):
            self._said[key] = _Said(change, at, at if said is None or at - said.at > HOLD_SECONDS else said.since)
            return change
        said.at = at
        if _count(change) == _count(said.change):
            said.change = change  # the same number, for the reasons of this moment
        if said.differs.for_as_long_as(HOLD_SECONDS, at, holds=differ(_count(said.change), _count(change))):
            self._said[key] = _Said(change, at, at)
        return self._said[key].change

    def _in_order(self, at: float, about: object, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """What came first still does, unless the verdict is about something else or another lever has come first for long enough."""
        first = changes[0] if changes else None
        same = self._first is None or (first is not None and first.lever == self._first.lever)
        if self._other_first.for_as_long_as(HOLD_SECONDS, at, holds=not same) or same or about != self._about:
            self._first, self._about, self._other_first = first, about, Lasting()
            return changes
        kept = next((change for change in changes if self._first is not None and change.lever == self._first.lever), self._first)
        return () if kept is None else (kept, *(change for change in changes if change.lever != kept.lever))


def _count(change: Change) -> int | None:
    return int(change.proposed) if change.proposed is not None and change.proposed.isdecimal() else None


def differ(one: int | None, other: int | None) -> bool:
    """Whether *other* is another advice than *one*, and not its neighbour."""
    if one is None or other is None:
        return one is not other
    return abs(one - other) >= max(_LEAST, BAND * one)
