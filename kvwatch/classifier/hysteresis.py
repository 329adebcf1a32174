"""A verdict changes only on sustained evidence.

What counts is for how long the rules have said the same other thing. An engine is called bound sooner than it is called
well again, and what we cannot see is said at once.
"""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.candidate import Candidate
from kvwatch.model import Cause, State

ONSET_SECONDS: Final = 4.0
RECOVERY_SECONDS: Final = 10.0
"""To leave a bound state while there is work, or to change from one bound state or cause to another."""


class Hysteresis:
    """The confirmed state of one engine, and since when it holds.

    *interval* is the time between polls in seconds: two polls far apart are sustained evidence by themselves.
    """

    def __init__(self, interval: float) -> None:
        self._onset = ONSET_SECONDS if interval < 2 * ONSET_SECONDS else 0.0
        self.confirmed: Candidate | None = None
        self.since: float = 0.0
        self._rival: tuple[State, Cause] | None = None
        self._rival_since: float = 0.0

    def settle(self, finding: Candidate, at: float) -> Candidate:
        """Take what the rules found at *at* seconds; returns what is to be said."""
        if self.confirmed is None or finding.state is not self.confirmed.state:
            changed = self._is_due(finding, at)
            if changed:
                self.since = at
        else:
            changed = finding.cause is self.confirmed.cause or self._is_due(finding, at)
        if changed:
            self.confirmed, self._rival = finding, None
        assert self.confirmed is not None  # noqa: S101 - `_is_due` is true while nothing is confirmed
        return self.confirmed

    def _is_due(self, finding: Candidate, at: float) -> bool:
        now = self.confirmed
        if now is None or State.UNKNOWN in (now.state, finding.state) or finding.cause is Cause.STALLED:
            return True
        # A rival is a state; among the causes of one state it is the cause.
        rival = (finding.state, finding.cause if finding.state is now.state else now.cause)
        if rival != self._rival:
            self._rival, self._rival_since = rival, at
        healthy_both = now.state is finding.state is State.HEALTHY
        if healthy_both or (now.state is State.HEALTHY and finding.cause is Cause.PREEMPTING):
            return True  # several preemptions are sustained evidence by themselves, and may page
        wait = self._onset if now.state is State.HEALTHY or finding.cause is Cause.IDLE else RECOVERY_SECONDS
        return at - self._rival_since >= wait
