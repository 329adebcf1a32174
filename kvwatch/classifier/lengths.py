"""How the lengths of requests vary, from the increase of a histogram's buckets."""

from __future__ import annotations

from operator import sub
from typing import Final

from kvwatch.capacity.spread import Moments, equally_long
from kvwatch.classifier.windows import increase
from kvwatch.model import Histogram

_ALIKE: Final = 0.9
"""Share of the requests in one bucket from which all count as equally long: their variance is 0. Lower: chat traffic, of which six or seven
in ten fall into one of vLLM's buckets, would count as that."""
_FEWEST: Final = 10.0
"""Requests below which a window says nothing of how lengths vary: then all that finished since the start do."""


def moments_of(first: Histogram | None, last: Histogram | None) -> Moments | None:
    """Moments of the lengths between two scrapes, or since the start where few have finished; ``None`` where nobody knows.

    Inside a bucket lengths are taken to be spread evenly, and all are scaled to the mean that ``_sum`` knows exactly. What is above the
    last edge counts as that edge.
    """
    if last is None:
        return None
    if first is not None and first.bounds == last.bounds:
        lately = _moments(last.bounds, list(map(sub, last.counts, first.counts)), increase(first.sum, last.sum))
        if lately is not None:
            return lately
    return _moments(last.bounds, list(last.counts), last.sum)


def _moments(bounds: tuple[float, ...], cumulative: list[float], total: float | None) -> Moments | None:
    count = cumulative[-1]
    counts = [after - before for before, after in zip([0.0, *cumulative], cumulative, strict=False)]
    if count < _FEWEST or min(counts) < 0 or not bounds:
        return None
    edges = zip([0.0, *bounds], [*bounds, bounds[-1]], counts, strict=True)
    cells = [(low, high, share / count) for low, high, share in edges]
    mean, squares, cubes = (sum(share * _even(low, high, power) for low, high, share in cells) for power in (1, 2, 3))
    if not mean > 0:
        return None
    scale = total / count / mean if total is not None and total > 0 else 1.0  # a sum may be absurd (vLLM #49135)
    if max(counts) >= _ALIKE * count:
        return equally_long(mean * scale)
    return Moments(mean * scale, squares * scale**2, cubes * scale**3)


def _even(low: float, high: float, power: int) -> float:
    """Mean of the *power* of a length that is anywhere between two edges."""
    if low == high:
        return float(low**power)
    return float((high ** (power + 1) - low ** (power + 1)) / ((power + 1) * (high - low)))
