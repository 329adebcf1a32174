"""Views become metric families: what kvwatch says of each engine, at the moment Prometheus asks.

Nothing is kept between two collections and nothing is waited for. Families are built anew from immutable views, so a label
set can neither race nor outlive its engine, and series whose evidence is stale are simply not there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvwatch.alerts.definition import AlertDefinition
from kvwatch.alerts.registry import ENGINE_ALERTS, TARGET_DOWN
from kvwatch.clock import Clock
from kvwatch.exporter.freshness import as_of, is_stale, is_up
from kvwatch.exporter.metrics import catalogue
from kvwatch.exporter.metrics.catalogue import (
    FAMILIES,
    LATENCIES,
    QUANTILES,
    SIGNAL_GAUGES,
    Family,
    label_value,
)
from kvwatch.model import Alert, Assessment, Cause, EngineId, Signals, State, TargetView, recommended_max_num_seqs

Labels = dict[str, str]
Sample = tuple[Family, Labels, float]

_log = structlog.get_logger(__name__)


class ViewCollector(Collector):
    """Every family of `kvwatch.exporter.metrics.catalogue`, read from the latest views.

    ``views`` returns the last word on every target and must not block; the windows are in seconds and only named in help
    texts. A view that cannot be read is left out, logged and counted in ``kvwatch_collect_faults_total``: one bad view
    never costs the others their scrape.
    """

    def __init__(self, views: Callable[[], Sequence[TargetView]], clock: Clock, *, fast_window: float, slow_window: float) -> None:
        self._views = views
        self._clock = clock
        self.name_windows(fast_window, slow_window)
        self._errors = 0
        self._lock = threading.Lock()

    def name_windows(self, fast: float, slow: float) -> None:
        """Name the windows (seconds) in the help texts."""
        windows = {"fast": f"{fast:g} s", "slow": f"{slow:g} s"}
        self._helps = {family: family.help.format(**windows) for family in FAMILIES}

    def describe(self) -> Iterator[Metric]:
        """The families without a series: registration learns their names, so that ``name[]`` finds them and none can come twice."""
        yield from self._families().values()

    def _families(self) -> dict[Family, Metric]:
        return {family: Metric(family.name, self._helps[family], family.kind) for family in FAMILIES}

    def collect(self) -> Iterator[Metric]:
        """All families. One without series is announced all the same, so that its name and help can be found."""
        made = self._families()
        for samples in self._samples_of_sound_views():
            for family, labels, value in samples:
                made[family].add_sample(f"{family.name}_total" if family.kind == "counter" else family.name, labels, value)
        made[catalogue.COLLECT_FAULTS].add_sample(f"{catalogue.COLLECT_FAULTS.name}_total", {}, self._errors)
        yield from made.values()

    def _samples_of_sound_views(self) -> Iterator[list[Sample]]:
        try:
            views = self._views()
        except Exception:  # noqa: BLE001 - a collector that raises fails the whole scrape
            self._count_fault(None)
            return
        now = self._clock.monotonic()
        for view in views:
            try:
                samples = [sample for sample in samples_of(view, now) if math.isfinite(sample[2])]
            except Exception:  # noqa: BLE001 - one bad view must not cost the others their scrape
                self._count_fault(view)
            else:
                yield samples

    def _count_fault(self, view: object) -> None:
        _log.exception("exporter.view_dropped", target=getattr(view, "name", None))
        with self._lock:
            self._errors += 1


def samples_of(view: TargetView, now: float) -> Iterator[Sample]:
    """All samples one view is worth at monotonic time ``now``."""
    target = {**{name: label_value(value) for name, value in view.labels.items()}, "target": label_value(view.name)}
    yield catalogue.TARGET_UP, target, float(is_up(view, now))
    yield catalogue.LAST_SUCCESS, target, view.last_success_unix or 0.0
    if view.scrape_seconds is not None:
        yield catalogue.SCRAPE_DURATION, target, view.scrape_seconds
    shown = as_of(view, now)
    for signal, name in sorted(shown.sources.items()):
        yield catalogue.SIGNAL_SOURCE, {**target, "signal": label_value(signal), "name": label_value(name)}, 1.0
    fresh = not is_stale(view, now)
    if fresh:
        yield from _alert_samples((TARGET_DOWN,), shown.alerts, target)
    yield from _condition_samples(shown.conditions, target)
    for assessment in shown.assessments:
        yield from _engine_samples(assessment, target, fresh=fresh)


def _engine_samples(assessment: Assessment, target: Labels, *, fresh: bool) -> Iterator[Sample]:
    engine = assessment.verdict.engine or EngineId(model_name="", engine="")
    labels = {**target, "model_name": label_value(engine.model_name), "engine": label_value(engine.engine)}
    for state in State:
        yield catalogue.STATE, {**labels, "state": state.value}, float(state is assessment.verdict.state)
    for cause in Cause:
        yield catalogue.CAUSE, {**labels, "cause": cause.value}, float(cause is assessment.verdict.cause)
    for state, seconds in assessment.state_seconds.items():
        yield catalogue.STATE_SECONDS, {**labels, "state": state.value}, seconds
    yield catalogue.STATE_TRANSITIONS, labels, float(assessment.transitions)
    yield from _condition_samples(assessment.conditions, labels)
    if not fresh:
        return
    yield from _alert_samples(ENGINE_ALERTS, assessment.alerts, labels)
    recommended = recommended_max_num_seqs(assessment.advice)
    if recommended is not None:
        yield catalogue.RECOMMENDED_MAX_NUM_SEQS, labels, float(recommended)
    for line in () if assessment.baseline is None else assessment.baseline.lines:
        yield catalogue.BASELINE_CHANGE, {**labels, "line": line.name}, line.change
    if assessment.signals is not None:
        yield from _signal_samples(assessment.signals, labels)


def _signal_samples(signals: Signals, labels: Labels) -> Iterator[Sample]:
    for name, window in (("fast", signals.fast), ("slow", signals.slow)):
        if window.preemption_ratio is not None:
            yield catalogue.PREEMPTION_RATIO, {**labels, "window": name}, window.preemption_ratio
        if window.preemptions is not None:
            yield catalogue.PREEMPTIONS, {**labels, "window": name}, window.preemptions
    for gauge in SIGNAL_GAUGES:
        value = gauge.read(signals)
        if value is not None:
            yield gauge.family, labels, float(value)
    for latency in LATENCIES:
        quantiles = latency.read(signals)
        if quantiles is not None:
            for label, field in QUANTILES:
                yield latency.family, {**labels, "quantile": label}, float(getattr(quantiles, field))


def _condition_samples(conditions: Mapping[str, bool], labels: Labels) -> Iterator[Sample]:
    for name, holds in conditions.items():
        yield catalogue.ALERT_CONDITION, {**labels, "alert": name}, float(holds)


def _alert_samples(known: Sequence[AlertDefinition], firing: Sequence[Alert], labels: Labels) -> Iterator[Sample]:
    """Every known alert as 0 or 1, so that ``== 1`` and ``changes()`` work from the first scrape on."""
    active = {alert.name for alert in firing}
    for alert in known:
        yield catalogue.ALERT_ACTIVE, {**labels, "alert": alert.name, "severity": alert.severity.value}, float(alert.name in active)
