"""Quantiles of a window from the increase of a cumulative histogram's buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import sub

from kvwatch.model import Histogram, Quantiles


def quantiles_between(first: Histogram | None, last: Histogram | None) -> Quantiles | None:
    """Quantiles (seconds) of what was observed between two scrapes of one histogram.

    ``None`` when either is missing, the bucket edges changed, a bucket went back or nothing was observed.
    """
    if first is None or last is None or first.bounds != last.bounds:
        return None
    increase = list(map(sub, last.counts, first.counts))
    total = increase[-1]
    if total <= 0 or min(increase) < 0:
        return None
    p50, p95, p99 = (_quantile(q, last.bounds, increase) for q in (0.50, 0.95, 0.99))
    return Quantiles(p50=p50, p95=p95, p99=p99, mean=_mean(first, last, total), count=total)


def _quantile(q: float, bounds: Sequence[float], cumulative: Sequence[float]) -> float:
    """Prometheus' ``histogram_quantile``: linear inside the bucket; the highest finite edge when it falls into ``+Inf``."""
    rank = q * cumulative[-1]
    index = bisect_left(cumulative, rank)
    if index >= len(bounds):
        return bounds[-1] if bounds else 0.0
    low = bounds[index - 1] if index else 0.0
    below = cumulative[index - 1] if index else 0.0
    inside = cumulative[index] - below
    return low + (bounds[index] - low) * ((rank - below) / inside if inside else 1.0)


def _mean(first: Histogram, last: Histogram, total: float) -> float | None:
    """Mean seconds, unless ``_sum`` is missing or went back (vLLM subtracts unguarded clocks, so it may)."""
    if first.sum is None or last.sum is None or last.sum < first.sum:
        return None
    return (last.sum - first.sum) / total
