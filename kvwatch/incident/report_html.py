"""A report as one self-contained HTML file: no script, no font, no picture from elsewhere; light, dark and on paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Final

from jinja2 import Template

from kvwatch import __version__
from kvwatch.html import templates
from kvwatch.incident.report import EngineReport, ReportChange, ReportSample
from kvwatch.incident.report_text import (
    NUMBERS,
    STATE_TITLES,
    advised,
    alerts_in_words,
    clock_of,
    headline,
    lasting,
    moment,
    shown,
    zone_name,
)
from kvwatch.model import State
from kvwatch.svg import curve, nice_top

WIDTH: Final = 1000
HEIGHT: Final = 120
_MOST_POINTS: Final = 500
"""Points of a curve: two to a unit of its width. Each is the highest value of its stretch, so that no peak is lost."""
_GAP_SPACINGS: Final = 3.0
_TICKS: Final = 6
_HOURS: Final = 2 * 3600.0
"""From so many seconds on the axis of time has no seconds."""


@dataclass(frozen=True, slots=True)
class ReportCurve:
    """One curve: its name, style and path."""

    name: str
    style: str
    path: str


@dataclass(frozen=True, slots=True)
class ReportChart:
    """A plot: its title, the value at its top in words, its curves and what it shows in words."""

    title: str
    top: str
    curves: tuple[ReportCurve, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class ReportBand:
    """A span of one state, in units from the left."""

    state: State
    x: float
    width: float


def as_html(reports: Sequence[EngineReport], zone: tzinfo = UTC) -> str:
    """The reports as a document."""
    return _template().render(
        engines=[_engine(report, zone) for report in reports],
        zone=zone_name(zone),
        titles=STATE_TITLES,
        states=tuple(STATE_TITLES),
        width=WIDTH,
        height=HEIGHT,
        version=__version__,
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    return templates("kvwatch.incident").get_template("report.html.j2")


def _engine(report: EngineReport, zone: tzinfo) -> dict[str, object]:
    first, last = report.samples[0].t, report.samples[-1].t
    span = max(last - first + report.spacing, 1.0)

    at = clock_of(report, zone)
    tick = at if last - first < _HOURS else clock_of(report, zone, "%H:%M")

    def x(t: float) -> float:
        return (t - first) / span * WIDTH

    return {
        "name": report.name,
        "from": moment(first, zone),
        "to": moment(last, zone),
        "headline": headline(report, zone),
        "remark": report.remark,
        "totals": [(STATE_TITLES[state], state, lasting(seconds)) for state in STATE_TITLES if (seconds := report.seconds_in(state))],
        "bands": [ReportBand(change.state, x(change.t), max(x(change.until) - x(change.t), 0.5)) for change in report.joined()],
        "charts": _charts(report, x),
        "ticks": [(f"{100 * step / _TICKS:.2f}", tick(first + span * step / _TICKS)) for step in range(_TICKS + 1)],
        "changes": [
            (at(one.t), lasting(one.until - one.t), one.state, one.cause.short_name, one.evidence, advised(one.advice))
            for one in report.changes
        ],
        "alerts": alerts_in_words(report, zone),
        "numbers": [
            (title, *(shown(report.highest(name, one.t, one.until), unit) for one in _parts(report))) for name, title, unit in NUMBERS
        ],
        "parts": [f"{STATE_TITLES[one.state]} from {at(one.t)}" for one in _parts(report)],
    }


def _parts(report: EngineReport) -> Sequence[ReportChange]:
    """The spans worth a column in the table of numbers: the longest of each state, in order of time."""
    longest: dict[State, ReportChange] = {}
    for change in report.joined():
        known = longest.get(change.state)
        if change.state is not State.UNKNOWN and (known is None or change.until - change.t > known.until - known.t):
            longest[change.state] = change
    return sorted(longest.values(), key=lambda change: change.t)


def _charts(report: EngineReport, x: Callable[[float], float]) -> list[ReportChart]:
    gap = _GAP_SPACINGS * max(report.spacing, (report.samples[-1].t - report.samples[0].t) / _MOST_POINTS, 1.0)
    thinned = _thinned(report.samples)
    groups = (
        ("KV cache usage", "share", (("kv_usage", "usage", "first"),), 1.0),
        ("Requests", "count", (("running", "running", "first"), ("waiting", "waiting", "second")), 4.0),
        ("Preemption ratio", "share", (("preemption_ratio", "over 2 min", "first"),), 0.2),
        ("Generated tokens/s", "count", (("generation_tokens_per_second", "tokens/s", "first"),), 10.0),
        ("Time to first token, P95", "seconds", (("time_to_first_token", "P95", "first"),), 0.1),
        ("Inter-token latency, P95", "seconds", (("inter_token_latency", "P95", "first"),), 0.01),
        ("End-to-end latency, P99", "seconds", (("e2e_latency", "P99", "first"),), 1.0),
    )
    found = []
    for title, unit, columns, least in groups:
        known = [value for name, _, _ in columns for one in thinned if (value := getattr(one, name)) is not None]
        if not known:
            continue
        top = min(nice_top(max(known), least), 1.0) if unit == "share" else nice_top(max(known), least)
        curves = tuple(
            ReportCurve(words, style, curve(((one.t, getattr(one, name)) for one in thinned), x, height=HEIGHT, gap=gap, top=top))
            for name, words, style in columns
        )
        found.append(ReportChart(title, shown(top, unit), curves, f"{title}: at most {shown(max(known), unit)}"))
    return found


def _thinned(samples: Sequence[ReportSample]) -> list[ReportSample]:
    """At most `_MOST_POINTS` samples, each with the highest value of every number in its stretch."""
    step = -(-len(samples) // _MOST_POINTS)
    return [_highest(samples[start : start + step]) for start in range(0, len(samples), step)]


def _highest(samples: Sequence[ReportSample]) -> ReportSample:
    def most(name: str) -> float | None:
        return max((value for one in samples if (value := getattr(one, name)) is not None), default=None)

    first = samples[0]
    return ReportSample(first.t, first.state, first.cause, **{name: most(name) for name, _, _ in NUMBERS})
