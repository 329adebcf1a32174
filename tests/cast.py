"""The demo as a moving picture: SVG whose lines appear when the demo says them. Without motion, all of it at its end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape, unescape
from io import StringIO
from typing import Final

from rehearsal import POLL, Rehearsal
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from kvwatch.demo.acts import SCENARIOS
from kvwatch.demo.screen import Script, numbers
from kvwatch.demo.stage import Frame
from kvwatch.model import TargetView

SCENARIO: Final = "storm"
SPEED: Final = 20.0
"""Virtual seconds in a second: slow enough to read, and over in half a minute."""
STILL: Final = 5.0
"""Seconds at the end before it begins again."""
COLUMNS: Final = 104
CHARACTER, LINE, MARGIN = 8.4, 19, 16
COLOURS: Final = {"green": "#7ec97e", "red": "#ff7b72", "yellow": "#e3b341", "blue": "#6cb6ff", "cyan": "#76e3ea", "magenta": "#d2a8ff"}
STYLE: Final = """
svg{background:#16181d;border-radius:8px}
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d5d8dd;white-space:pre}
.l,.f{opacity:0;animation-duration:%(length)ss;animation-iteration-count:infinite;animation-timing-function:step-end}
.f{animation-name:f}
@keyframes f{0%%{opacity:1}%(frame).3f%%,100%%{opacity:0}}
%(lines)s
@media(prefers-reduced-motion:reduce){.l,.f{animation:none}.l,.f:last-of-type{opacity:1}}
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """What the demo's screen says at a second of the film."""

    second: float
    told: list[list[list[Segment]]]
    """Each told line in the rows it takes."""
    numbers: list[list[Segment]]


def rows(drawn: RenderableType) -> list[list[Segment]]:
    """How a terminal of so many columns shows it."""
    console = Console(width=COLUMNS, file=StringIO(), force_terminal=True, color_system="standard")
    return console.render_lines(drawn, pad=False)


def moments() -> list[Moment]:
    """The scenario from its first poll to its last."""
    rehearsal, script = Rehearsal(seed=1), Script()
    found = []
    for act in SCENARIOS[SCENARIO]:
        act.begin(rehearsal.simulation, rehearsal.advised)
        for _ in range(round(act.seconds / POLL)):
            judgement = rehearsal.poll()
            at = rehearsal.now
            view = TargetView("simulated-vllm", "", POLL, at, at, at, 0.0, assessments=judgement.assessments, alerts=judgement.alerts)
            told = [
                rows(Padding(Text(line.text, style=line.style), (0, 0, 0, line.indent), expand=False))
                for line in script.news(Frame(act, 0.0, view))
            ]
            found.append(Moment(at / SPEED, told, rows(numbers(view))))
    return found


def cast() -> str:
    """The SVG."""
    film = moments()
    length = film[-1].second + STILL
    below = 7 * LINE + MARGIN
    frames, lines, keyframes = [], [], []
    for number, moment in enumerate(film):
        last = number == len(film) - 1
        shown = "".join(text(row, 3 * LINE + MARGIN + index * LINE) for index, row in enumerate(moment.numbers))
        frames.append(
            f'<g class="{"l" if last else "f"}" style="animation-{f"name:l{number}" if last else f"delay:{moment.second:g}s"}">{shown}</g>'
        )
        if moment.told or last:
            keyframes.append(f"@keyframes l{number}{{0%{{opacity:0}}{100 * moment.second / length:.2f}%,100%{{opacity:1}}}}")
        for told in moment.told:
            lines.append(
                f'<g class="l" style="animation-name:l{number}">{"".join(text(row, below + i * LINE) for i, row in enumerate(told))}</g>'
            )
            below += len(told) * LINE
    width, height = round(COLUMNS * CHARACTER) + 2 * MARGIN, below + MARGIN
    style = STYLE % {"length": f"{length:g}", "frame": 100 * POLL / SPEED / length, "lines": "\n".join(keyframes)}
    head = text([Segment(f"$ kvwatch demo --scenario {SCENARIO}")], LINE + MARGIN)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
        f"<title>kvwatch demo: a preemption storm, its page, and the advice that ends it</title><style>{style}</style>\n"
        + "\n".join([head, *frames, *lines])
        + "\n</svg>\n"
    )


def words(svg: str) -> list[str]:
    """What is written in it, element by element."""
    return [unescape(re.sub(r"<[^>]*>", "", row)) for row in re.findall(r"<text.*?</text>", svg)]


def text(row: list[Segment], y: int) -> str:
    """One row of the terminal, its baseline at *y*."""
    return f'<text x="{MARGIN}" y="{y}">{"".join(span(segment) for segment in row)}</text>'


def span(segment: Segment) -> str:
    """A piece of one style."""
    style = segment.style
    if style is None or not segment.text.strip():
        return escape(segment.text, quote=False)
    colour = style.bgcolor or style.color
    attributes = f' fill="{COLOURS[colour.name]}"' if colour is not None and colour.name in COLOURS else ""
    attributes += ' font-weight="bold"' if style.bold else ""
    attributes += ' opacity=".6"' if style.dim else ""
    return f"<tspan{attributes}>{escape(segment.text, quote=False)}</tspan>" if attributes else escape(segment.text, quote=False)
