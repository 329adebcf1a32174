"""The same classifier over the past: a recording goes in, one row per scrape and engine comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kvwatch.classifier.engine import TargetClassifier
from kvwatch.errors import ScrapeError
from kvwatch.exporter.alerts import AlertPolicy, EngineAlerts, TargetAlerts
from kvwatch.incident.recording import Entry
from kvwatch.model import Alert, Assessment, EngineId, FailureReason, ScrapeFailure
from kvwatch.poller.vllm import parse_scrape


@dataclass(frozen=True, slots=True)
class Row:
    """What kvwatch said of one engine at one recorded scrape."""

    t: float
    target: str
    assessment: Assessment
    target_alerts: tuple[Alert, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The line of ``replay --format jsonl``."""
        verdict, signals = self.assessment.verdict, self.assessment.signals
        return {
            "t": self.t,
            "target": self.target,
            "model_name": verdict.engine.model_name if verdict.engine else None,
            "engine": verdict.engine.engine if verdict.engine else None,
            "state": verdict.state,
            "cause": verdict.cause,
            "preemption_ratio": {
                "fast": signals.fast.preemption_ratio if signals else None,
                "slow": signals.slow.preemption_ratio if signals else None,
            },
            "kv_usage": signals.kv_usage if signals else None,
            "running": signals.running if signals else None,
            "waiting": signals.waiting if signals else None,
            "alerts": [alert.name for alert in (*self.assessment.alerts, *self.target_alerts)],
        }


class Judge:
    """One target's classifier and alerts together: what the daemon and the replay both feed."""

    def __init__(self, classifier: TargetClassifier, policy: AlertPolicy) -> None:
        self._classifier = classifier
        self._policy = policy
        self._engine_alerts: dict[EngineId, EngineAlerts] = {}
        self._target_alerts = TargetAlerts(policy)

    def body(self, body: bytes, at: float) -> tuple[tuple[Assessment, ...], tuple[Alert, ...]]:
        """Judge a scraped body; one that cannot be used is a failure like any other."""
        try:
            scrape = parse_scrape(body, at)
        except ScrapeError as fault:
            return self.failure(ScrapeFailure(at, fault.reason, fault.detail))
        return self._alerted(self._classifier.observe(scrape), at), self._target_alerts.update(at, None)

    def failure(self, failure: ScrapeFailure) -> tuple[tuple[Assessment, ...], tuple[Alert, ...]]:
        """Judge a failed scrape."""
        return self._alerted(self._classifier.fail(failure), failure.at), self._target_alerts.update(failure.at, failure)

    def _alerted(self, assessments: tuple[Assessment, ...], at: float) -> tuple[Assessment, ...]:
        self._engine_alerts = {
            a.verdict.engine: self._engine_alerts.get(a.verdict.engine) or EngineAlerts(self._policy)
            for a in assessments
            if a.verdict.engine is not None
        }
        return tuple(
            a
            if a.verdict.engine is None
            else replace(a, alerts=self._engine_alerts[a.verdict.engine].update(at, a.verdict, a.signals))
            for a in assessments
        )


def replay(entries: Iterable[Entry], target: str, judge: Judge) -> Iterator[Row]:
    """Rows of a recording in its order; the recording's own time is the only clock."""
    for entry in entries:
        if entry.body is not None:
            assessments, alerts = judge.body(entry.body, entry.t)
        else:
            assessments, alerts = judge.failure(_failure(entry))
        for assessment in assessments:
            yield Row(entry.t, target, assessment, alerts)


def _failure(entry: Entry) -> ScrapeFailure:
    reason, _, detail = (entry.error or "").partition(":")
    try:
        return ScrapeFailure(entry.t, FailureReason(reason.strip()), detail.strip() or "as recorded")
    except ValueError:
        return ScrapeFailure(entry.t, FailureReason.INTERNAL, entry.error or "no reason was recorded")
