"""Quantiles of a window from the increase of a cumulative histogram's buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import sub

from kvwatch.classifier.windows import increase
from kvwatch.model import Histogram, Quantiles


def quantiles_between(first: Histogram | None, last: Histogram | None) -> Quantiles | None:
    """Quantiles (seconds) of what was observed between two scrapes of one histogram.

    ``None`` when either is missing, the bucket edges changed, a bucket went back or nothing was observed.
    """
    if first is None or last is None or first.bounds != last.bounds:
        return None
    gained = list(map(sub, last.counts, first.counts))
    total = gained[-1]
    if total <= 0 or min(gained) < 0:
        return None
    p50, p95, p99 = (_quantile(q, last.bounds, gained) for q in (0.50, 0.95, 0.99))
    return Quantiles(p50=p50, p95=p95, p99=p99, mean=_mean(first, last, total), count=total)


def _quantile(q: float, bounds: Sequence[float], cumulative: Sequence[float]) -> float:
    """Prometheus' ``histogram_quantile``: linear inside the bucket; the highest finite edge when it falls into ``+Inf``."""
    rank = q * cumulative[-1]
    index = bisect_left(cumulative, rank)
    if index >= len(bounds):
        return bounds[-1] if bounds else 0.0
    low = bounds[index - 1] if index else 0.0
    below = cumulative[index - 1] if index else 0.0
    return low + (bounds[index] - low) * (rank - below) / (cumulative[index] - below)


def _mean(first: Histogram, last: Histogram, total: float) -> float | None:
    """Mean seconds, unless ``_sum`` is missing or went back (vLLM subtracts unguarded clocks, so it may)."""
    seconds = increase(first.sum, last.sum)
    return None if seconds is None else seconds / total
