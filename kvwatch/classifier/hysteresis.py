"""A verdict changes only on sustained evidence, and what is no longer found is left.

What counts is for how long the confirmed state (or cause) has not been found, whatever was found instead. An engine is called bound sooner
than it is called well again; what we cannot see, and that tokens come again, is said at once. A lost poll is no evidence: an engine that
was bound before it is called well again as late as if it had not been lost.
"""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Candidate
from kvwatch.model import Cause, State

ONSET_SECONDS: Final = 4.0
"""To leave health, and to find an engine without work: two polls at the default interval."""
RECOVERY_SECONDS: Final = 10.0
"""To leave a bound state while there is work, or to change from one cause of it to another: three polls (``kv_admission``)."""
_EARLY: Final = 0.1
"""Part of the interval by which polls may be nearer than it says: the third of three is not to miss by that (``chat_open_v032``)."""

_BOUND: Final = (State.KV_BOUND, State.COMPUTE_BOUND)


class Hysteresis:
    """The confirmed state of one engine, and since when it holds.

    *interval* is the time between polls in seconds: two polls far apart are sustained evidence by themselves.
    """

    def __init__(self, interval: float) -> None:
        self._onset = ONSET_SECONDS if interval < 2 * ONSET_SECONDS else 0.0
        self._recovery = RECOVERY_SECONDS - _EARLY * interval
        self.confirmed: Candidate | None = None
        self.since: float = 0.0
        self._state_missed_at: float | None = None
        self._cause_missed_at: float | None = None
        self._before_lost: tuple[Candidate, float, float | None] | None = None
        """What was confirmed when polls began to be lost, since when, and since when it had not been found."""

    def settle(self, candidate: Candidate, at: float) -> Candidate:
        """Take what the rules found at *at* seconds; returns what is to be said.

        Its evidence is always that of now: where the numbers say something else than the verdict, they are quoted as such.
        """
        self._look_beyond_lost(candidate)
        now = self.confirmed
        if now is None or candidate.state is not now.state:
            self._state_missed_at = at if self._state_missed_at is None else self._state_missed_at
        else:
            self._state_missed_at = None
        if now is None or candidate.cause is not now.cause:
            self._cause_missed_at = at if self._cause_missed_at is None else self._cause_missed_at
        else:
            self._cause_missed_at = None
        if now is None or self._is_due(now, candidate, at):
            self.since = at if now is None or candidate.state is not now.state else self.since
            self.confirmed = candidate
            self._state_missed_at = self._cause_missed_at = None
            return candidate
        return Candidate(now.state, now.cause, (f"for a moment the numbers say {candidate.state}/{candidate.cause}", *candidate.evidence))

    def _look_beyond_lost(self, candidate: Candidate) -> None:
        """Keep what stood before the first lost poll, and hold it against the first word that the engine is well."""
        if candidate.cause is Cause.UNREACHABLE:
            if self.confirmed is not None and self.confirmed.cause is not Cause.UNREACHABLE:
                self._before_lost = (self.confirmed, self.since, self._state_missed_at)
            return
        if self._before_lost is not None and candidate.state is State.HEALTHY and self._before_lost[0].state in _BOUND:
            self.confirmed, self.since, self._state_missed_at = self._before_lost
        self._before_lost = None

    def _is_due(self, now: Candidate, candidate: Candidate, at: float) -> bool:
        if candidate.cause is now.cause or now.state is candidate.state is State.HEALTHY:
            return True
        if State.UNKNOWN in (now.state, candidate.state) or now.cause is Cause.STALLED:
            return True  # a single token ends a stall
        if candidate.sustained and (now.state is State.HEALTHY or candidate.cause is Cause.STALLED or not self._onset):
            return True  # the last: it lasted from one poll to the next, and they are far apart
        missed_at = self._cause_missed_at if candidate.state is now.state else self._state_missed_at
        wait = self._onset if now.state is State.HEALTHY or candidate.cause is Cause.IDLE else self._recovery
        return missed_at is not None and at - missed_at >= wait
