"""From conditions to firing alerts: the state machines of one engine and of one target.

No clock is read: ``at`` is the time of the scrape (live) or of the recording (replay), so a replay fires exactly what the
watch fired. The alerts themselves are in `kvwatch.alerts.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from kvwatch.alerts.definition import AlertDefinition, Facts
from kvwatch.alerts.registry import ENGINE_ALERTS, TARGET_DOWN
from kvwatch.alerts.state import AlertState
from kvwatch.alerts.target_down import Failures, describe
from kvwatch.alerts.times import EVIDENCE_SECONDS, at_least
from kvwatch.config.policy import Policy
from kvwatch.model import Alert, BaselineComparison, Change, Others, ScrapeFailure, Signals, Verdict


class _Announced:
    """An alert's state, and the text it said when its condition was last seen to hold."""

    def __init__(self, definition: AlertDefinition, interval: float) -> None:
        self.definition = definition
        self.state = AlertState(
            for_seconds=definition.for_seconds, hold=definition.hold_seconds, evidence=at_least(EVIDENCE_SECONDS, interval)
        )
        self._text = definition.summary
        self.faults: tuple[Exception, ...] = ()
        """Errors of kvwatch's own at the last update: a condition that fails is one that was not seen, a text that fails is the summary."""

    def update(self, at: float, seen: Callable[[], tuple[bool | None, float]], describe: Callable[[], str]) -> Alert | None:
        """The alert if it fires at *at*; *seen* is whether its condition holds, and for how long it has already: see `AlertState.step`."""
        self.faults = ()
        try:
            holds, before = seen()
        except Exception as error:  # noqa: BLE001 - an alert that fails must cost no other one anything
            self.faults, holds, before = (error,), None, 0.0
        try:
            self._text = describe() if holds else self._text
        except Exception as error:  # noqa: BLE001 - better a page with little text than none
            self.faults, self._text = (error,), self.definition.summary
        self.state.step(at, holds, before=before)
        if self.state.since is None:
            return None
        return Alert(self.definition.name, self.definition.severity, self.state.since, self.definition.summary, self._text)


def _conditions(alerts: Iterable[_Announced]) -> dict[str, bool]:
    return {known.definition.name: met for known in alerts if (met := known.state.met) is not None}


class EngineAlerts:
    """The alerts of one engine: one instance per engine, updated once per poll in the order of time, about every *interval* seconds."""

    def __init__(self, policy: Policy, interval: float) -> None:
        self._policy = policy
        self._alerts = tuple((definition, _Announced(definition, interval)) for definition in ENGINE_ALERTS)

    def reconfigure(self, policy: Policy) -> None:
        """Alert by another policy; what fires goes on until its condition says otherwise."""
        self._policy = policy

    @property
    def conditions(self) -> dict[str, bool]:
        """By alert whether its condition counts as met after the last poll; without those that were never seen."""
        return _conditions(known for _, known in self._alerts)

    def update(
        self,
        at: float,
        verdict: Verdict,
        signals: Signals | None,
        advice: Sequence[Change] = (),
        baseline: BaselineComparison | None = None,
    ) -> tuple[Alert, ...]:
        """What fires after a poll; ``signals`` is ``None`` where it failed. `Alert.since` is when it began to fire."""
        facts = Facts(self._policy, verdict, signals, advice, baseline)
        firing = (
            known.update(at, partial(definition.seen, facts), partial(definition.describe, facts)) for definition, known in self._alerts
        )
        return tuple(alert for alert in firing if alert is not None)

    @property
    def faults(self) -> tuple[Exception, ...]:
        """Errors of kvwatch's own at the last update; the alerts they concern kept what they had, and nothing else changed."""
        return tuple(fault for _, known in self._alerts for fault in known.faults)


class TargetAlerts:
    """The alerts of one target as a whole: one instance per target, polled about every *interval* seconds."""

    def __init__(self, interval: float) -> None:
        self._failures = Failures()
        self._last_failure: ScrapeFailure | None = None
        self._down = _Announced(TARGET_DOWN, interval)

    @property
    def conditions(self) -> dict[str, bool]:
        """As `EngineAlerts.conditions`."""
        return _conditions((self._down,))

    def update(self, at: float, failure: ScrapeFailure | None, others: Others = tuple) -> tuple[Alert, ...]:
        """What fires after a scrape that ended in ``failure``, or well (``None``); *others* were named together with this target."""
        self._last_failure = failure or self._last_failure
        failing = self._failures.mostly(at, failure)
        alert = self._down.update(at, lambda: (failing, 0.0), partial(self._describe, others))
        return () if alert is None else (alert,)

    def _describe(self, others: Others) -> str:
        return TARGET_DOWN.summary if self._last_failure is None else describe(self._last_failure, others())
