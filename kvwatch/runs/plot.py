"""A ladder as a picture: throughput, the wait for the first token and preemptions, rung by rung. A self-contained SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from kvwatch.runs.ladder import Ladder
from kvwatch.svg import nice_top
from kvwatch.text import number

_WIDTH: Final = 720
_LEFT, _RIGHT, _BOTTOM = 60, 30, 55
_PANEL, _GAP = 130, 40
"""Pixels: how high a panel is, and what is above it for its name."""
_TICKS: Final = 2
_WHOLE: Final = 10.0
"""From there on an axis says whole numbers."""
_STYLE: Final = """\
svg{font:13px system-ui,sans-serif;color:#1c2330;background:#fff}text{fill:currentColor}
.axis{fill:none;stroke:currentColor;stroke-opacity:.35}
.line{fill:none;stroke:#2c6bd1;stroke-width:2}.rung{fill:#2c6bd1}.knee{fill:#c22f2f}.band{fill:#c22f2f;fill-opacity:.12}
@media(prefers-color-scheme:dark){svg{color:#e6e9ef;background:#12161d}}"""


@dataclass(frozen=True, slots=True)
class _Panel:
    """One line of the runs: its name, its value at each rung (``None`` where unknown), and the least its axis reaches."""

    name: str
    values: Sequence[float | None]
    least: float


def ladder_as_svg(found: Ladder) -> str:
    """The picture. Raises `ValueError` where a rung has no time to first token."""
    waits = [run.lines.time_to_first_token.p95 for run in found.rungs]
    if None in waits:
        raise ValueError("not every run has a time to first token: there is nothing to draw throughput against")
    preempted = [None if run.lines.preemption_ratio is None else 100 * run.lines.preemption_ratio for run in found.rungs]
    panels = [
        _Panel("generated tokens/s", [run.lines.generated_tokens_per_second for run in found.rungs], 1.0),
        _Panel("time to first token, P95 (s)", waits, 0.1),
        _Panel("preempted (% of the requests that left the batch)", preempted, 10.0),
    ]
    drawn = [panel for panel in panels if any(value is not None for value in panel.values)]
    height = len(drawn) * (_GAP + _PANEL) + _BOTTOM
    body = [*_rungs(found, height - _BOTTOM), *(part for place, panel in enumerate(drawn) for part in _panel(panel, place, found.knee))]
    title = f"Throughput and time to first token by {found.axis.title}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(found.verdict)}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{''.join(body)}</svg>\n"
    )


def _rungs(found: Ladder, bottom: int) -> Iterator[str]:
    """What the rungs are called, below all panels, and the knee's band behind them."""
    count = len(found.rungs)
    for index, run in enumerate(found.rungs):
        x, knee = _x(index, count), index == found.knee
        if knee:
            yield f'<rect class="band" x="{x - 16:.1f}" y="{_GAP}" width="32" height="{bottom - _GAP}"/>'
        name = number(found.axis.read(run) or 0.0)
        yield f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{name}{" (knee)" if knee else ""}</text>'
    yield f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{bottom + 42}" text-anchor="middle">{escape(found.axis.title)}</text>'


def _panel(panel: _Panel, place: int, knee: int | None) -> Iterator[str]:
    """One line over the rungs, from zero, with its axis."""
    top, bottom = place * (_GAP + _PANEL) + _GAP, (place + 1) * (_GAP + _PANEL)
    highest = nice_top(max(value for value in panel.values if value is not None), panel.least)
    yield f'<text x="{_LEFT}" y="{top - 14}">{escape(panel.name)}</text>'
    yield f'<path class="axis" d="M{_LEFT} {top}V{bottom}H{_WIDTH - _RIGHT}"/>'
    for step in range(_TICKS + 1):
        share = step / _TICKS
        yield f'<text x="{_LEFT - 8}" y="{bottom - share * _PANEL + 4:.1f}" text-anchor="end">{_tick(highest * share)}</text>'
    count = len(panel.values)
    points = [(index, _x(index, count), bottom - value / highest * _PANEL) for index, value in enumerate(panel.values) if value is not None]
    yield f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for _, x, y in points)}"/>'
    for index, x, y in points:
        yield f'<circle class="{"knee" if index == knee else "rung"}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def _tick(value: float) -> str:
    """A number at an axis: small ones with their fraction."""
    return f"{value:.2g}" if value < _WHOLE else number(value)


def _x(index: int, count: int) -> float:
    """Rungs stand evenly, whatever lies between them."""
    return _LEFT + (index + 0.5) / count * (_WIDTH - _LEFT - _RIGHT)
