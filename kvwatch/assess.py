"""One target's judgement from scrape to alerts: what the daemon, the replay and ``kvwatch check`` all feed.

It joins the pure halves (classifier, alerts, advice) and holds what they remember of one target; time comes in with
each scrape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvwatch.advice.neighbours import Neighbours, Peers
from kvwatch.advice.remembered import RememberedAdvice
from kvwatch.alerts.evaluation import EngineAlerts, TargetAlerts
from kvwatch.capacity.pool import server_of
from kvwatch.classifier.overflow import with_overflow
from kvwatch.classifier.target import TargetClassifier
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.config.settings import Settings
from kvwatch.model import Alert, Assessment, BaselineComparison, EngineId, Others, Scrape, ScrapeFailure, Signals, State, TargetView
from kvwatch.runs.drift import Drift
from kvwatch.runs.run import Run


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is said of a target after one scrape: an assessment per engine, and the alerts about the target itself."""

    assessments: tuple[Assessment, ...]
    alerts: tuple[Alert, ...]
    conditions: Mapping[str, bool] = field(default_factory=dict)
    """`TargetView.conditions`."""
    faults: tuple[Exception, ...] = ()
    """Errors of kvwatch's own: an engine is without verdict, advice or comparison, or an alert without text, and nothing else changed."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What is remembered of one engine beside its history."""

    alerts: EngineAlerts
    advice: RememberedAdvice = field(default_factory=RememberedAdvice)


class Judge:
    """The classifier, the advice and the alerts of one target, polled about every *interval* seconds, compared with *baseline* if given."""

    def __init__(self, policy: Policy, known: KnownConfig, interval: float, baseline: Run | None = None) -> None:
        self._classifier = TargetClassifier(policy, known, interval=interval)
        self._policy = policy
        self._known = known
        self._engines: dict[EngineId | None, _Remembered] = {}
        """Under ``None`` stands a target of which no engine is known: it has a verdict too, and may leave kvwatch blind for long."""
        self._process_started: float | None = None
        self._of_version = known
        """What is known, with the version the server names where the operator has named none."""
        self._interval = interval
        self._target_alerts = TargetAlerts(interval)
        self._drift = Drift(baseline)

    def reconfigure(self, policy: Policy, known: KnownConfig, baseline: Run | None = None) -> None:
        """Judge by another policy and baseline, and by what the operator knows now, keeping every history."""
        self._policy, self._known, self._of_version = policy, known, known
        self._classifier.reconfigure(policy, known)
        for remembered in self._engines.values():
            remembered.alerts.reconfigure(policy)
        self._drift.reconfigure(baseline)

    def scraped(self, scrape: Scrape, others: Others = tuple) -> Judgement:
        """Judge a successful scrape; *others* were named together with this target."""
        self._process_started = scrape.process_start_time
        self._of_version = self._with_version(scrape.vllm_version)
        compared, faults = self._compared(scrape)
        assessments = [
            replace(one, baseline=compared.get(one.verdict.engine)) if compared else one
            for one in with_overflow(self._classifier.observe(scrape), scrape.engines_dropped)
        ]
        return self._judgement(assessments, scrape.at, None, others, faults)

    def _compared(self, scrape: Scrape) -> tuple[Mapping[EngineId | None, BaselineComparison], Sequence[Exception]]:
        try:
            return self._drift.observe(scrape), ()
        except Exception as error:  # noqa: BLE001 - a comparison that fails is none
            return {}, (error,)

    def _with_version(self, version: str | None) -> KnownConfig:
        known = self._known
        if version is None or known.vllm_version is not None:
            return known
        if version == self._of_version.vllm_version:
            return self._of_version
        return known.model_copy(update={"vllm_version": version})

    def failed(self, failure: ScrapeFailure, others: Others = tuple) -> Judgement:
        """Judge a failed scrape; *others* as in `scraped`."""
        return self._judgement(self._classifier.fail(failure), failure.at, failure, others)

    def _judgement(
        self,
        assessments: Sequence[Assessment],
        at: float,
        failure: ScrapeFailure | None,
        others: Others,
        not_compared: Sequence[Exception] = (),
    ) -> Judgement:
        """Add advice and alerts; of an engine that is no longer assessed nothing is remembered."""
        before, self._engines = self._engines, {}
        faults = [*not_compared, *self._classifier.faults]
        said = []
        for assessment, neighbours in _with_neighbours(assessments, others):
            engine = assessment.verdict.engine
            remembered = self._engines[engine] = before.get(engine) or _Remembered(EngineAlerts(self._policy, self._interval))
            signals, advice = assessment.signals, assessment.advice
            try:
                signals, advice = remembered.advice.advised(assessment, at, self._of_version, self._process_started, neighbours)
            except Exception as error:  # noqa: BLE001 - advice that fails must cost neither this engine its alerts nor another one anything
                faults.append(error)
            alerts = remembered.alerts.update(at, assessment.verdict, signals, advice, assessment.baseline)
            faults += remembered.alerts.faults
            conditions = remembered.alerts.conditions
            said.append(replace(assessment, signals=signals, advice=advice, alerts=alerts, conditions=conditions))
        about_target = self._target_alerts.update(at, failure, others)
        return Judgement(tuple(said), about_target, self._target_alerts.conditions, tuple(faults))


def _with_neighbours(assessments: Sequence[Assessment], others: Others) -> Iterator[tuple[Assessment, Neighbours]]:
    """Each engine with its server's other ranks and, where something binds, with the engines of *others* that serve its model."""
    binds = any(one.verdict.state in (State.KV_BOUND, State.COMPUTE_BOUND) for one in assessments)
    replicas = {model: Peers(tuple(found)) for model, found in _by_model(others() if binds else ()).items()}
    ranks: defaultdict[object, list[Signals]] = defaultdict(list)
    for assessment in assessments:
        if assessment.signals is not None:
            ranks[_server(assessment)].append(assessment.signals)
    servers = {server: Peers(tuple(found)) for server, found in ranks.items()}
    for assessment in assessments:
        yield assessment, Neighbours(servers.get(_server(assessment), Peers()), replicas.get(_model(assessment), Peers()))


def _server(assessment: Assessment) -> tuple[str, str] | None:
    """Whose rank the engine is; ``None`` where no engine is known."""
    return None if assessment.verdict.engine is None else server_of(assessment.verdict.engine)


def _model(assessment: Assessment) -> str | None:
    return None if assessment.verdict.engine is None else assessment.verdict.engine.model_name


def _by_model(others: Sequence[TargetView]) -> dict[str | None, list[Signals]]:
    """Signals of the engines of other targets that answered their last poll, by the model they serve."""
    found: defaultdict[str | None, list[Signals]] = defaultdict(list)
    for view in others:
        for assessment in view.assessments if view.failure is None else ():
            if assessment.signals is not None:
                found[_model(assessment)].append(assessment.signals)
    return found


def judge_for(
    settings: Settings, target: KnownConfig | None = None, *, interval: float | None = None, baseline: Run | None = None
) -> Judge:
    """A judge as *settings* want it; what *target* says of itself goes before what holds for all targets.

    *baseline* is what `kvwatch.runs.drift.read_baseline` made of the file that the settings name.
    """
    return Judge(settings.policy, settings.known_of(target), settings.poll.interval if interval is None else interval, baseline)
