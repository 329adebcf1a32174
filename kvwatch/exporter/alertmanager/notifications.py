"""What an Alertmanager has to be sent, and when: Prometheus' own rules for sending alerts, without a clock or a socket.

Prometheus (``rules/alerting.go``, ``notifier``) keeps ``startsAt`` constant, sends a firing alert again every resend delay with an
``endsAt`` of four times that ahead, so that a sender that dies resolves its alerts by silence, and sends a resolved alert
again for 15 minutes. Where it differs: a send that failed is tried again soon, not at the next resend.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvwatch.alerts.registry import DEFINITIONS
from kvwatch.model import Alert, EngineId, TargetView
from kvwatch.text import rfc3339

RESOLVED_RETENTION: Final = 900.0
"""Seconds a resolved alert is sent again (Prometheus' ``resolvedRetention``)."""
_VALIDITY: Final = 4
_LONGEST_BACKOFF: Final = 30.0

Labels = tuple[tuple[str, str], ...]
"""Name and value, sorted: the identity of an alert in Alertmanager."""


@dataclass(frozen=True, slots=True)
class Notification:
    """One alert as Alertmanager is sent of it; ``_unix`` are timestamps, the others monotonic seconds."""

    labels: Labels
    summary: str
    description: str
    starts_unix: float
    confirmed_at: float
    """When kvwatch last found it firing."""
    resolved_at: float | None = None
    resolved_unix: float | None = None

    def is_current(self, monotonic: float) -> bool:
        """Whether it fires, or did within `RESOLVED_RETENTION`."""
        return self.resolved_at is None or monotonic - self.resolved_at <= RESOLVED_RETENTION

    def as_json(self, *, unix: float, resend: float, page_url: str) -> dict[str, object]:
        """The object of Alertmanager's v2 API; *page_url* is where people reach kvwatch's page, without a final slash.

        Whatever the wall clock did, nothing starts in the future or ends before it starts, which would be a 400.
        """
        starts = min(self.starts_unix, unix)
        ends = unix + _VALIDITY * resend if self.resolved_unix is None else self.resolved_unix
        labels = dict(self.labels)
        return {
            "labels": labels,
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{page_url}/runbook#{labels['alertname']}",
                "status_url": f"{page_url}/",
            },
            "startsAt": rfc3339(starts),
            "endsAt": rfc3339(max(ends, starts)),
            "generatorURL": f"{page_url}/",
        }


class AlertRecord:
    """The alerts that fire, and those that ended within `RESOLVED_RETENTION`. It knows only what this process has seen.

    So a restarted kvwatch never resolves what it did not raise: an alert of its former life stays up in Alertmanager until its
    ``endsAt``, and one that is raised anew before that goes on without a break, for Alertmanager merges the two.
    """

    def __init__(self, extra_labels: Mapping[str, str]) -> None:
        self._extra_labels = extra_labels
        self._by_target: dict[str, dict[Labels, Notification]] = {}

    def update(self, view: TargetView, *, monotonic: float, unix: float) -> None:
        """Take in what fires for a target now; whatever fired before and does not any more has just been resolved."""
        before = self._by_target.get(view.name, {})
        firing = {}
        for engine, alert in _alerts_of(view):
            labels = self._labels(view, engine, alert)
            known = before.get(labels)
            starts = unix - (monotonic - alert.since) if known is None or known.resolved_at is not None else known.starts_unix
            firing[labels] = Notification(labels, alert.summary, alert.description, starts, monotonic)
        self._by_target[view.name] = {**_ended(before, firing, monotonic=monotonic, unix=unix), **firing}

    def forget(self, target: str, *, monotonic: float, unix: float) -> None:
        """A target is watched no more: what fired for it is resolved."""
        self._by_target[target] = _ended(self._by_target.get(target, {}), {}, monotonic=monotonic, unix=unix)

    def notifications(self, monotonic: float) -> tuple[Notification, ...]:
        """Everything an Alertmanager may have to be sent at this time; what ended too long ago is dropped for good."""
        for target, alerts in list(self._by_target.items()):
            recent = {labels: known for labels, known in alerts.items() if known.is_current(monotonic)}
            if recent:
                self._by_target[target] = recent
            else:
                del self._by_target[target]
        return tuple(known for alerts in self._by_target.values() for known in alerts.values())

    def _labels(self, view: TargetView, engine: EngineId | None, alert: Alert) -> Labels:
        labels = {
            **self._extra_labels,
            **view.labels,
            "alertname": DEFINITIONS[alert.name].prometheus_name,
            "severity": alert.severity.value,
            **DEFINITIONS[alert.name].labels,
            "target": view.name,
        }
        if engine is not None:
            labels |= {"model_name": engine.model_name, "engine": engine.engine}
        # Alertmanager drops empty values; dropped here, the identity is the same on both sides.
        return tuple(sorted((name, value) for name, value in labels.items() if value))


def _alerts_of(view: TargetView) -> Iterator[tuple[EngineId | None, Alert]]:
    for alert in view.alerts:
        yield None, alert
    for assessment in view.assessments:
        for alert in assessment.alerts:
            yield assessment.verdict.engine, alert


def _ended(
    before: Mapping[Labels, Notification], firing: Mapping[Labels, Notification], *, monotonic: float, unix: float
) -> dict[Labels, Notification]:
    """What fired before and does not any more: resolved now, or already then."""
    return {
        labels: known if known.resolved_at is not None else replace(known, resolved_at=monotonic, resolved_unix=unix)
        for labels, known in before.items()
        if labels not in firing
    }


@dataclass(frozen=True, slots=True)
class _Sent:
    starts_unix: float
    resolved: bool
    at: float


class Delivery:
    """What one Alertmanager has been sent, and so what it has still to be sent; each replica has its own."""

    def __init__(self, resend: float) -> None:
        self._resend = resend
        self._sent: dict[Labels, _Sent] = {}
        self._failures = 0
        self._not_before: float | None = None

    def due(self, notifications: Sequence[Notification], now: float) -> tuple[Notification, ...]:
        """What to send now: what is new, what has changed, and what was last sent a resend ago."""
        if self._not_before is not None and now < self._not_before:
            return ()
        return tuple(one for one in notifications if (at := self._due_at(one)) is not None and at <= now)

    def wait(self, notifications: Sequence[Notification], now: float) -> float | None:
        """Seconds until something is due without any news; ``None`` while only news can make it so."""
        times = [at for one in notifications if (at := self._due_at(one)) is not None]
        if not times:
            return None
        return max(0.0, min(times) - now, 0.0 if self._not_before is None else self._not_before - now)

    def _due_at(self, one: Notification) -> float | None:
        sent = self._sent.get(one.labels)
        resolved = one.resolved_at is not None
        if sent is None or (sent.starts_unix, sent.resolved) != (one.starts_unix, resolved):
            return -math.inf
        # A firing alert that nobody has found firing since is not sent again: if the polls hang, it must run out.
        return sent.at + self._resend if resolved or one.confirmed_at > sent.at else None

    def delivered(self, sent: Sequence[Notification], known: Sequence[Notification], now: float) -> None:
        """The Alertmanager has answered, with thanks or with a refusal of the content, which it would refuse again."""
        self._failures, self._not_before = 0, None
        current = {one.labels for one in known}
        self._sent = {labels: sent for labels, sent in self._sent.items() if labels in current}
        self._sent |= {one.labels: _Sent(one.starts_unix, one.resolved_at is not None, now) for one in sent}

    def failed(self, now: float) -> None:
        """It could not be sent; the next try waits 1, 2, 4 … seconds, at most 30 and at most a resend."""
        self._failures += 1
        self._not_before = now + min(2.0 ** min(self._failures - 1, 10), _LONGEST_BACKOFF, self._resend)
