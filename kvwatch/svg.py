"""Curves as SVG path data, and round axis ends: for the status page and the report. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

_ROUND: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def curve(samples: Iterable[tuple[float, float | None]], x: Callable[[float], float], *, height: float, gap: float, top: float) -> str:
    """Path data of samples ``(at, value)`` between 0 and *top*: a new piece after every absent value and every gap (seconds).

    *x* places a time; a piece of one point is a dot.
    """
    pieces: list[str] = []
    previous: float | None = None
    for at, value in samples:
        if value is None:
            previous = None
            continue
        y = height - min(max(value / top, 0.0), 1.0) * height
        joined = previous is not None and at - previous <= gap
        pieces.append(f"{'L' if joined else 'M'}{x(at):.1f} {y:.1f}{'' if joined else 'h0'}")
        previous = at
    return "".join(pieces)


def nice_top(highest: float, least: float) -> float:
    """The value at the top of an axis: the next round number, at least ``least``."""
    if highest <= least:
        return least
    power = 10.0 ** math.floor(math.log10(highest))
    return next(step * power for step in _ROUND if step * power >= highest)
