"""Views become metric families: what kvwatch says of each engine, at the moment Prometheus asks.

Nothing is kept between two collections and nothing is waited for. Families are built anew from immutable views, so a label
set can neither race nor outlive its engine, and series whose evidence is stale are simply not there.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, overload

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as EncodedSample

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

_YES, _NO = 1.0, 0.0
_NO_LABELS: Final[Labels] = {}
_STATES: Final = {state: {"state": state.value} for state in State}
_CAUSES: Final = {cause: {"cause": cause.value} for cause in Cause}
_ALERTS: Final = {alert.name: {"alert": alert.name, "severity": alert.severity.value} for alert in (TARGET_DOWN, *ENGINE_ALERTS)}
_CONDITIONS: Final = {alert.name: {"alert": alert.name} for alert in (TARGET_DOWN, *ENGINE_ALERTS)}
_WINDOWS: Final = {name: {"window": name} for name in ("fast", "slow")}
_QUANTILES: Final = {label: {"quantile": label} for label, _ in QUANTILES}


class Sample(NamedTuple):
    """One sample."""

    family: Family
    whose: Labels
    """The labels of the target or engine: one dictionary for all its samples."""
    which: Labels
    """The labels that tell the samples of one family and engine apart."""
    value: float


class Samples(Sequence[EncodedSample]):
    """The samples of one family until it is their turn to be encoded, each made when it is asked for.

    Those of a whole fleet wait at once: 24 bytes each, where a made one with its labels takes 360.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._whose: list[Labels] = []
        self._which: list[Labels] = []
        self._values = array("d")

    def add(self, sample: Sample) -> None:
        """One more."""
        self._whose.append(sample.whose)
        self._which.append(sample.which)
        self._values.append(sample.value)

    @overload
    def __getitem__(self, index: int) -> EncodedSample: ...
    @overload
    def __getitem__(self, index: slice) -> list[EncodedSample]: ...
    def __getitem__(self, index: int | slice) -> EncodedSample | list[EncodedSample]:
        """Made anew at every call."""
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        return EncodedSample(self._name, {**self._whose[index], **self._which[index]}, self._values[index])

    def __len__(self) -> int:
        return len(self._values)


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
        self._helps = {family.name: family.help.format(**windows) for family in FAMILIES}

    def describe(self) -> Iterator[Metric]:
        """The families without a series: registration learns their names, so that ``name[]`` finds them and none can come twice."""
        for family in FAMILIES:
            yield self._metric(family)

    def _metric(self, family: Family) -> Metric:
        return Metric(family.name, self._helps[family.name], family.kind)

    def collect(self) -> Iterator[Metric]:
        """All families, each made when it is asked for. One without samples is announced too, so that its name and help can be found."""
        found = {family.name: Samples(f"{family.name}_total" if family.kind == "counter" else family.name) for family in FAMILIES}
        for samples in self._samples_of_sound_views():
            for sample in samples:
                found[sample.family.name].add(sample)
        found[catalogue.COLLECT_FAULTS.name].add(Sample(catalogue.COLLECT_FAULTS, _NO_LABELS, _NO_LABELS, self._errors))
        for family in FAMILIES:
            metric = self._metric(family)
            metric.samples = found.pop(family.name)  # type: ignore[assignment] # a sequence does for those that encode
            yield metric

    def _samples_of_sound_views(self) -> Iterator[list[Sample]]:
        try:
            views = self._views()
        except Exception:  # noqa: BLE001 - a collector that raises fails the whole scrape
            self._count_fault(None)
            return
        now = self._clock.monotonic()
        for view in views:
            try:
                samples = [sample for sample in samples_of(view, now) if math.isfinite(sample.value)]
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
    yield Sample(catalogue.TARGET_UP, target, _NO_LABELS, float(is_up(view, now)))
    yield Sample(catalogue.LAST_SUCCESS, target, _NO_LABELS, view.last_success_unix or 0.0)
    if view.scrape_seconds is not None:
        yield Sample(catalogue.SCRAPE_DURATION, target, _NO_LABELS, view.scrape_seconds)
    shown = as_of(view, now)
    for signal, name in sorted(shown.sources.items()):
        yield Sample(catalogue.SIGNAL_SOURCE, target, _source(signal, name), 1.0)
    fresh = not is_stale(view, now)
    if fresh:
        yield from _alert_samples((TARGET_DOWN,), shown.alerts, target)
    yield from _condition_samples(shown.conditions, target)
    for assessment in shown.assessments:
        yield from _engine_samples(assessment, target, fresh=fresh)


@lru_cache(maxsize=1024)
def _source(signal: str, name: str) -> Labels:
    return {"signal": label_value(signal), "name": label_value(name)}


def _engine_samples(assessment: Assessment, target: Labels, *, fresh: bool) -> Iterator[Sample]:
    engine = assessment.verdict.engine or EngineId(model_name="", engine="")
    whose = {**target, "model_name": label_value(engine.model_name), "engine": label_value(engine.engine)}
    for state, which in _STATES.items():
        yield Sample(catalogue.STATE, whose, which, _YES if state is assessment.verdict.state else _NO)
    for cause, which in _CAUSES.items():
        yield Sample(catalogue.CAUSE, whose, which, _YES if cause is assessment.verdict.cause else _NO)
    for state, seconds in assessment.state_seconds.items():
        yield Sample(catalogue.STATE_SECONDS, whose, _STATES[state], seconds)
    yield Sample(catalogue.STATE_TRANSITIONS, whose, _NO_LABELS, float(assessment.transitions))
    yield from _condition_samples(assessment.conditions, whose)
    if not fresh:
        return
    yield from _alert_samples(ENGINE_ALERTS, assessment.alerts, whose)
    recommended = recommended_max_num_seqs(assessment.advice)
    if recommended is not None:
        yield Sample(catalogue.RECOMMENDED_MAX_NUM_SEQS, whose, _NO_LABELS, float(recommended))
    for line in () if assessment.baseline is None else assessment.baseline.lines:
        yield Sample(catalogue.BASELINE_CHANGE, whose, {"line": line.name}, line.change)
    if assessment.signals is not None:
        yield from _signal_samples(assessment.signals, whose)


def _signal_samples(signals: Signals, whose: Labels) -> Iterator[Sample]:
    for name, window in (("fast", signals.fast), ("slow", signals.slow)):
        if window.preemption_ratio is not None:
            yield Sample(catalogue.PREEMPTION_RATIO, whose, _WINDOWS[name], window.preemption_ratio)
        if window.preemptions is not None:
            yield Sample(catalogue.PREEMPTIONS, whose, _WINDOWS[name], window.preemptions)
    for gauge in SIGNAL_GAUGES:
        value = gauge.read(signals)
        if value is not None:
            yield Sample(gauge.family, whose, _NO_LABELS, float(value))
    for latency in LATENCIES:
        quantiles = latency.read(signals)
        if quantiles is not None:
            for label, field in QUANTILES:
                yield Sample(latency.family, whose, _QUANTILES[label], float(getattr(quantiles, field)))


def _condition_samples(conditions: Mapping[str, bool], whose: Labels) -> Iterator[Sample]:
    for name, holds in conditions.items():
        yield Sample(catalogue.ALERT_CONDITION, whose, _CONDITIONS[name], _YES if holds else _NO)


def _alert_samples(known: Sequence[AlertDefinition], firing: Sequence[Alert], whose: Labels) -> Iterator[Sample]:
    """Every known alert as 0 or 1, so that ``== 1`` and ``changes()`` work from the first scrape on."""
    active = {alert.name for alert in firing}
    for alert in known:
        yield Sample(catalogue.ALERT_ACTIVE, whose, _ALERTS[alert.name], _YES if alert.name in active else _NO)
