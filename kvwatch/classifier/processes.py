"""Which process answers: the one of before, one that has started since, or another one behind the same address."""

from __future__ import annotations

from enum import Enum
from typing import Final

from kvwatch.config.policy import Policy
from kvwatch.model import Scrape

_SLACK: Final = 1.0
"""Seconds by which a start time may tremble."""
_TURNS: Final = 3
"""Times a known process answered again after another one: strict alternation has shown itself by the fifth poll."""
_STAYS: Final = 3
"""Answers in a row after which another process is believed to be the only one: a rollback, or a standby that took over."""
_MOST_KNOWN: Final = 16
"""Processes that are remembered; behind one address stand a few replicas."""
_TURNS_POLLS: Final = 8
"""Polls in which three turns of strict alternation are seen, with a lost one or two among them."""


class Answer(Enum):
    """Whose answer a scrape is."""

    SAME = "the process of before"
    RESTARTED = "a process that has started since the last poll: its counters began at zero"
    ANOTHER = "another process, which ran before: its counters say nothing of the time between"
    STRAY = "an older process that answered once: not to be mixed in"


class Processes:
    """The processes seen behind one address. *window* is for how long (seconds) their turns are remembered."""

    def __init__(self, window: float) -> None:
        self.window = window
        self._watched: float | None = None
        self._last: float | None = None
        self._last_unix: float | None = None
        self._known: tuple[float, ...] = ()
        self._turns: tuple[float, ...] = ()
        self._strays = 0
        self._to_settle = 0

    def look(self, scrape: Scrape) -> Answer:
        """Say whose answer *scrape* is; a page that does not name its process's start is taken for the same one's."""
        start, unix, self._last_unix = scrape.process_start_time, self._last_unix, scrape.unix
        if start is None:
            return Answer.SAME
        known = any(_same(start, one) for one in self._known)
        if self._last is None or _same(start, self._last):
            self._to_settle = max(0, self._to_settle - 1)
        elif known or start < self._last or (unix is not None and start < unix - _SLACK):
            self._to_settle = _STAYS - 1
            if known:
                self._turns = (*self._turns, scrape.at)[-_TURNS:]
        if not known:
            self._known = (*self._known, start)[-_MOST_KNOWN:]
        self._last = start
        if self._watched is None or _same(start, self._watched):
            self._watched, self._strays = start, 0
            return Answer.SAME
        if start > self._watched:
            self._watched, self._strays = start, 0
            return Answer.RESTARTED if unix is None or start >= unix - _SLACK else Answer.ANOTHER
        self._strays += 1
        if self._strays < _STAYS:
            return Answer.STRAY
        self._watched, self._strays = start, 0
        return Answer.ANOTHER

    def alternate(self, at: float) -> bool:
        """Whether several processes answer in turn, or one that ran before has answered and none has been settled on yet."""
        return self._to_settle > 0 or (len(self._turns) == _TURNS and at - self._turns[0] <= self.window)


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= _SLACK


def turns_window(policy: Policy, interval: float) -> float:
    """Seconds over which the turns of several processes are remembered."""
    return max(policy.window.slow, _TURNS_POLLS * interval)
