"""Metric families as prometheus_client's own collectors would yield them, `_created` series included."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvwatch.simulator.counters import Distribution

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


def gauge(name: str, help_text: str, samples: Iterable[Sample]) -> Metric:
    """A gauge family."""
    family = Metric(name, help_text, "gauge")
    for labels, value in samples:
        family.add_sample(name, dict(labels), value)
    return family


def counter(name: str, help_text: str, samples: Iterable[Sample], created: float | None) -> Metric:
    """A counter family; `name` without ``_total``; `created` in unix seconds, or None where ``_created`` is not exported."""
    family = Metric(name, help_text, "counter")
    for labels, value in samples:
        family.add_sample(f"{name}_total", dict(labels), value)
        if created is not None:
            family.add_sample(f"{name}_created", dict(labels), created)
    return family


def histogram(name: str, help_text: str, samples: Iterable[tuple[Labels, Distribution]], created: float | None) -> Metric:
    """A histogram family with cumulative buckets."""
    family = Metric(name, help_text, "histogram")
    for labels, distribution in samples:
        total = 0
        for bound, count in zip((*distribution.bounds, math.inf), distribution.counts, strict=True):
            total += count
            family.add_sample(f"{name}_bucket", {**labels, "le": "+Inf" if bound == math.inf else str(bound)}, total)
        family.add_sample(f"{name}_count", dict(labels), total)
        family.add_sample(f"{name}_sum", dict(labels), distribution.sum)
        if created is not None:
            family.add_sample(f"{name}_created", dict(labels), created)
    return family


def summary(name: str, help_text: str, labels: Labels, *, count: float, total: float, created: float | None) -> Metric:
    """A summary family without quantiles."""
    family = Metric(name, help_text, "summary")
    family.add_sample(f"{name}_count", dict(labels), count)
    family.add_sample(f"{name}_sum", dict(labels), total)
    if created is not None:
        family.add_sample(f"{name}_created", dict(labels), created)
    return family


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def render(families: Sequence[Metric]) -> str:
    """The families as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry).decode()
