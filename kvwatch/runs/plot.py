"""A ladder as a picture: throughput against the wait for the first token, one point a rung. A self-contained SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from kvwatch.runs.ladder import Ladder
from kvwatch.svg import nice_top
from kvwatch.text import number

_WIDTH: Final = 720
_HEIGHT: Final = 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 30, 30, 60
_TICKS: Final = 5
_STYLE: Final = """\
svg{font:13px system-ui,sans-serif;color:#1c2330;background:#fff}text{fill:currentColor}.axis{stroke:currentColor;stroke-opacity:.35}
.line{fill:none;stroke:#2c6bd1;stroke-width:2}.rung{fill:#2c6bd1}.knee{fill:#c22f2f}
@media(prefers-color-scheme:dark){svg{color:#e6e9ef;background:#12161d}}"""


def ladder_as_svg(found: Ladder) -> str:
    """The picture. Raises `ValueError` where a rung has no time to first token."""
    points = [(run.lines.time_to_first_token.p95, run.lines.generated_tokens_per_second or 0.0) for run in found.rungs]
    known = [(wait, rate) for wait, rate in points if wait is not None]
    if len(known) < len(points):
        raise ValueError("not every run has a time to first token: there is nothing to draw throughput against")
    right, top = (nice_top(max(values), 0.1) for values in zip(*known, strict=True))
    placed = [(_x(wait / right), _y(rate / top)) for wait, rate in known]
    body = [*_axes(right, top), f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in placed)}"/>']
    for index, (run, (x, y)) in enumerate(zip(found.rungs, placed, strict=True)):
        kind, label = ("knee", " (knee)") if index == found.knee else ("rung", "")
        body.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
        body.append(f'<text x="{x + 8:.1f}" y="{y - 8:.1f}">{number(found.axis.read(run) or 0.0)}{label}</text>')
    title = f"Throughput and time to first token by {found.axis.title}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(found.verdict)}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{''.join(body)}</svg>\n"
    )


def _axes(right: float, top: float) -> Iterator[str]:
    yield f'<path class="axis" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}" fill="none"/>'
    for step in range(_TICKS + 1):
        share = step / _TICKS
        yield f'<text x="{_x(share):.1f}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle">{right * share:.2g}</text>'
        yield f'<text x="{_LEFT - 8}" y="{_y(share) + 4:.1f}" text-anchor="end">{number(top * share)}</text>'
    yield f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 15}" text-anchor="middle">time to first token, P95 (s)</text>'
    yield f'<text x="{_LEFT}" y="18">generated tokens/s</text>'


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)
