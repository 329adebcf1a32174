"""One target's judgement from scrape to alerts: what the daemon, the replay and ``kvwatch check`` all feed.

It joins the pure halves (classifier, alerts, advice) and holds what they remember of one target; time comes in with
each scrape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvwatch.classifier.advice import advise
from kvwatch.classifier.engine import TargetClassifier
from kvwatch.classifier.thresholds import Thresholds
from kvwatch.exporter.alerts import AlertPolicy, EngineAlerts, TargetAlerts
from kvwatch.model import Alert, Assessment, EngineId, KnownConfig, Scrape, ScrapeFailure
from kvwatch.settings import KnownConfigSettings, Settings


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is said of a target after one scrape: an assessment per engine, and the alerts about the target itself."""

    assessments: tuple[Assessment, ...]
    alerts: tuple[Alert, ...]


class Judge:
    """The classifier, the advice and the alerts of one target, polled about every *interval* seconds."""

    def __init__(self, thresholds: Thresholds, policy: AlertPolicy, known: KnownConfig, interval: float) -> None:
        self._classifier = TargetClassifier(thresholds, known, interval=interval)
        self._policy = policy
        self._known = known
        self._engine_alerts: dict[EngineId | None, EngineAlerts] = {}
        self._target_alerts = TargetAlerts()

    def scraped(self, scrape: Scrape) -> Judgement:
        """Judge a successful scrape."""
        return Judgement(self._complete(self._classifier.observe(scrape), scrape.at), self._target_alerts.update(scrape.at, None))

    def failed(self, failure: ScrapeFailure) -> Judgement:
        """Judge a failed scrape."""
        return Judgement(self._complete(self._classifier.fail(failure), failure.at), self._target_alerts.update(failure.at, failure))

    def _complete(self, assessments: tuple[Assessment, ...], at: float) -> tuple[Assessment, ...]:
        """Add alerts and advice; an engine that is no longer assessed takes its alerts with it."""
        books, self._engine_alerts = self._engine_alerts, {}
        said = []
        for assessment in assessments:
            verdict = assessment.verdict
            # A target of which no engine is known has a verdict too, and may leave kvwatch blind for long.
            book = self._engine_alerts[verdict.engine] = books.get(verdict.engine) or EngineAlerts(self._policy)
            said.append(
                replace(
                    assessment,
                    alerts=book.update(at, verdict, assessment.signals),
                    advice=advise(verdict, assessment.signals, assessment.config, self._known),
                )
            )
        return tuple(said)


def judge_for(settings: Settings, target: KnownConfigSettings | None = None, *, interval: float | None = None) -> Judge:
    """A judge as *settings* want it; what *target* says of itself goes before what holds for all targets."""
    return Judge(
        thresholds_of(settings), policy_of(settings), known_of(settings, target), settings.poll.interval if interval is None else interval
    )


def thresholds_of(settings: Settings) -> Thresholds:
    """The classifier's policy."""
    return Thresholds(
        fast_window=settings.window.fast,
        slow_window=settings.window.slow,
        kv_watermark=settings.thresholds.kv_watermark,
        stall_seconds=settings.thresholds.stall,
        silence_seconds=settings.thresholds.silence,
    )


def policy_of(settings: Settings) -> AlertPolicy:
    """The alerts' policy."""
    return AlertPolicy(
        storm_ratio=settings.thresholds.storm_ratio,
        storm_min_preemptions=settings.thresholds.storm_min_preemptions,
        time_to_first_token=settings.objectives.time_to_first_token,
        inter_token_latency=settings.objectives.inter_token_latency,
        e2e_request_latency=settings.objectives.e2e_request_latency,
    )


def known_of(settings: Settings, target: KnownConfigSettings | None) -> KnownConfig:
    """What the operator knows of a target."""
    fields = KnownConfigSettings.model_fields
    own = {name: getattr(target, name) for name in fields} if target is not None else {}
    return KnownConfig(**{name: getattr(settings.vllm, name) if own.get(name) is None else own[name] for name in fields})
