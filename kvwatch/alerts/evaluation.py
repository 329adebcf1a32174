"""From conditions to firing alerts, with Prometheus' own meaning of ``for``: the condition holds without a break, then it fires.

No clock is read: ``at`` is the time of the scrape (live) or of the recording (replay), so a replay fires exactly what the
watch fired. The alerts themselves are in `kvwatch.alerts.definitions`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kvwatch.alerts.conditions import target_is_down
from kvwatch.alerts.definitions import ENGINE_ALERTS, HOLD_SECONDS, KEEP_SECONDS, TARGET_DOWN, AlertDefinition
from kvwatch.alerts.descriptions import target_down
from kvwatch.config.policy import Policy
from kvwatch.model import Alert, ScrapeFailure, Severity, Signals, State, Verdict


class _AlertState:
    """Where one alert stands: quiet, pending or firing; times in seconds of the caller's clock."""

    __slots__ = ("_definition", "_firing", "_met_at", "_pending_since", "_unmet_since")

    def __init__(self, definition: AlertDefinition) -> None:
        self._definition = definition
        self._pending_since: float | None = None
        self._unmet_since: float | None = None
        self._met_at = 0.0  # meaningful while firing
        self._firing: Alert | None = None

    def update(self, at: float, holds: bool | None, describe: Callable[[], str], *, over: bool = False) -> Alert | None:
        """The alert if it fires at ``at``; ``holds`` is ``None`` where nobody knows, ``over`` says that nothing may keep it firing.

        A firing alert goes on for `KEEP_SECONDS` after it has been seen to hold no more, and for `HOLD_SECONDS` after it was last seen to
        hold. A pending one begins again with either, as in Prometheus.
        """
        if holds:
            self._met(at, describe)
        else:
            if holds is False and self._unmet_since is None:
                self._unmet_since = at
            self._pending_since = None
            if over or at - self._met_at > HOLD_SECONDS or (self._unmet_since is not None and at - self._unmet_since >= KEEP_SECONDS):
                self._firing = None
        return self._firing

    def _met(self, at: float, describe: Callable[[], str]) -> None:
        self._met_at = at
        self._unmet_since = None
        if self._pending_since is None:
            self._pending_since = at
        if self._firing is not None or at - self._pending_since >= self._definition.for_seconds:
            self._firing = Alert(
                name=self._definition.name,
                severity=self._definition.severity,
                since=at if self._firing is None else self._firing.since,
                summary=self._definition.summary,
                description=describe(),
            )


class EngineAlerts:
    """The alerts of one engine: one instance per engine, updated once per scrape in the order of time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._states = tuple((definition, _AlertState(definition)) for definition in ENGINE_ALERTS)

    def update(self, at: float, verdict: Verdict, signals: Signals | None) -> tuple[Alert, ...]:
        """What fires after a scrape; ``signals`` is ``None`` where the scrape failed. `Alert.since` is when it began to fire.

        A page ends at once where the engine is known to be well.
        """
        well = verdict.state is State.HEALTHY
        firing = (
            state.update(
                at,
                definition.condition(self._policy, verdict, signals),
                partial(definition.describe, self._policy, verdict, signals),
                over=well and definition.severity is Severity.CRITICAL,
            )
            for definition, state in self._states
        )
        return tuple(alert for alert in firing if alert is not None)


class TargetAlerts:
    """The alerts of one target as a whole: one instance per target."""

    def __init__(self) -> None:
        self._down = _AlertState(TARGET_DOWN)

    def update(self, at: float, failure: ScrapeFailure | None) -> tuple[Alert, ...]:
        """What fires after a scrape that ended in ``failure``, or well (``None``)."""
        if failure is None or not target_is_down(failure):
            alert = self._down.update(at, holds=False, describe=str)
        else:
            alert = self._down.update(at, holds=True, describe=partial(target_down, failure))
        return () if alert is None else (alert,)
