"""Where one alert stands: inactive, pending or firing. Pure; time comes in with every step.

A step says whether the condition was seen to hold (``True``), not to hold (``False``), or could not be seen (``None``, a lost poll).
What was seen last stands for what is unseen until it is *evidence* seconds old; then the condition counts as not met. So a step is
*met* or *unmet*:

========  ==========================================  ========================================================
state     met                                         unmet
========  ==========================================  ========================================================
inactive  pending; firing if ``for`` is 0             inactive
pending   firing once it has been so for ``for``      inactive
firing    firing, and *unmet since* is forgotten      firing; inactive once it has been unmet for ``hold``
========  ==========================================  ========================================================

Prometheus does the same with ``last_over_time(…[evidence])``, ``for`` and ``keep_firing_for``.
"""

from __future__ import annotations

from enum import Enum, auto


class AlertPhase(Enum):
    """What an alert is."""

    INACTIVE = auto()
    PENDING = auto()
    FIRING = auto()


class AlertState:
    """One alert of one engine or target; *for_seconds*, *hold* and *evidence* are seconds."""

    __slots__ = ("_active_since", "_evidence", "_for", "_hold", "_seen", "_seen_at", "_stepped_at", "_unmet_since", "since")

    def __init__(self, *, for_seconds: float, hold: float, evidence: float) -> None:
        self._for = for_seconds
        self._hold = hold
        self._evidence = evidence
        self._seen = False
        self._seen_at: float | None = None
        self._stepped_at: float | None = None
        self._active_since: float | None = None
        self._unmet_since: float | None = None
        self.since: float | None = None
        """When it began to fire; ``None`` while it does not."""

    @property
    def phase(self) -> AlertPhase:
        """Where it stands after the last step."""
        if self.since is not None:
            return AlertPhase.FIRING
        return AlertPhase.INACTIVE if self._active_since is None else AlertPhase.PENDING

    def step(self, at: float, holds: bool | None, *, before: float = 0.0) -> AlertPhase:
        """Take in what was seen at *at*, which never goes back; returns where the alert stands now.

        *before*: for how many seconds what was seen proves that the condition has held already.
        """
        if self._stepped_at is not None and at - self._stepped_at > self._evidence:
            self._unmet(self._stepped_at + self._evidence, now=at)  # there was no step at which it would have been found
        self._stepped_at = at
        if holds and self.since is None and self._seen_at is not None and at - self._seen_at > self._evidence:
            self._active_since = None  # the last yes stood no longer, though no step fell into that time: pending anew
        if holds is not None:
            self._seen, self._seen_at = holds, at
        if self._seen and self._seen_at is not None and at - self._seen_at <= self._evidence:
            self._met(at, at - before if holds else at)
        else:
            self._unmet(at, now=at)
        return self.phase

    def _met(self, at: float, since: float) -> None:
        self._unmet_since = None
        self._active_since = since if self._active_since is None else min(since, self._active_since)
        if self.since is None and at - self._active_since >= self._for:
            self.since = at

    def _unmet(self, since: float, *, now: float) -> None:
        if self.since is None:
            self._active_since = None
            return
        if self._unmet_since is None:
            self._unmet_since = since
        if now - self._unmet_since >= self._hold:
            self.since = self._active_since = self._unmet_since = None
