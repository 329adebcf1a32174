"""Where one alert stands: inactive, pending or firing. Pure; time comes in with every step.

A step says whether the condition was seen to hold (``True``), not to hold (``False``), or could not be seen (``None``, a lost poll).
What was seen last stands for what is unseen until it is *evidence* seconds old; from then on the condition counts as not met. So a
step is *met* or *unmet*:

========  ==========================================  ========================================================
state     met                                         unmet
========  ==========================================  ========================================================
inactive  pending; firing if ``for`` is 0             inactive
pending   firing once it has been so for ``for``      inactive
firing    firing, and *unmet since* is forgotten      firing; inactive once it has been unmet for ``hold``
========  ==========================================  ========================================================

Prometheus is told of `AlertState.met` (``kvwatch_alert_condition``), and does the rest with ``for`` and ``keep_firing_for``.
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

    __slots__ = ("_active_since", "_evidence", "_for", "_hold", "_met", "_stands_until", "_unmet_since", "since")

    def __init__(self, *, for_seconds: float, hold: float, evidence: float) -> None:
        self._for = for_seconds
        self._hold = hold
        self._evidence = evidence
        self._met = False
        self._stands_until: float | None = None
        """When what was seen last is too old; ``None`` while nothing was ever seen."""
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

    @property
    def met(self) -> bool | None:
        """Whether the condition counts as met after the last step; ``None`` while it was never seen."""
        return None if self._stands_until is None else self._met

    def step(self, at: float, holds: bool | None, *, before: float = 0.0) -> AlertPhase:
        """Take in what was seen at *at*, which never goes back; returns where the alert stands now.

        *before*: for how many seconds what was seen proves that the condition has held already.
        """
        if self._stands_until is not None and at > self._stands_until:  # also where no step fell between
            self._met = False
            self._rest(self._stands_until, now=at)
        if holds is not None:
            self._met, self._stands_until = holds, at + self._evidence
        if self._met:
            self._wait(at - before if holds else at, now=at)
        else:
            self._rest(at, now=at)
        return self.phase

    def _wait(self, since: float, *, now: float) -> None:
        """Met, at least since *since*."""
        self._unmet_since = None
        self._active_since = since if self._active_since is None else min(since, self._active_since)
        if self.since is None and now - self._active_since >= self._for:
            self.since = now

    def _rest(self, since: float, *, now: float) -> None:
        """Unmet, at least since *since*."""
        if self._unmet_since is None:
            self._unmet_since = since
        if self.since is None or now - self._unmet_since >= self._hold:
            self.since = self._active_since = None
