"""A replay as a table for people: one line per span of time in which the verdict stood still."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from itertools import groupby
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvwatch.incident.replay import ReplayRow
from kvwatch.incident.report import CALM
from kvwatch.incident.report_text import zone_name
from kvwatch.model import Cause, EngineId, State
from kvwatch.text import printable

_BRIEF_SECONDS: Final = 30.0
_NARROW: Final = 80
"""Columns of a terminal in which the evidence has no column of its own but stands below its span."""
_STYLES: Final = {State.HEALTHY: "green", State.KV_BOUND: "bold red", State.COMPUTE_BOUND: "yellow", State.UNKNOWN: "dim"}


@dataclass(frozen=True, slots=True)
class StateSpan:
    """A run of rows of one engine with one verdict and the same alerts; times are unix seconds."""

    target: str
    engine: EngineId | None
    start: float
    end: float
    state: State
    cause: Cause
    evidence: tuple[str, ...]
    peak_ratio: float | None
    alerts: tuple[str, ...]


def spans(rows: Iterable[ReplayRow]) -> list[StateSpan]:
    """The spans of *rows*, engine by engine, in order of time. Of the rows themselves none is kept: a recording may be long."""
    told: dict[tuple[str, EngineId | None], list[StateSpan]] = {}
    for row in rows:
        now = _span_of(row)
        own = told.setdefault((row.target, now.engine), [])
        if own and _continues(own[-1], now):
            own[-1] = replace(own[-1], end=now.end, evidence=now.evidence, peak_ratio=_higher(own[-1].peak_ratio, now.peak_ratio))
        else:
            own.append(now)
            _join_brief(own)
    return [span for _, own in sorted(told.items(), key=lambda item: item[0][0]) for span in own]


def _join_brief(own: list[StateSpan]) -> None:
    """Make one span of the last three where few requests come and go: work, a moment without any, work."""
    if len(own) < 3:  # noqa: PLR2004 - three
        return
    before, between, now = own[-3:]
    if _continues(before, now) and {before.cause, between.cause} == CALM and between.end - between.start < _BRIEF_SECONDS:
        own[-3:] = [replace(now, start=before.start, peak_ratio=_higher(before.peak_ratio, now.peak_ratio))]


def _span_of(row: ReplayRow) -> StateSpan:
    verdict, signals = row.assessment.verdict, row.assessment.signals
    ratio = signals.slow.preemption_ratio if signals is not None else None
    alerts = tuple(alert.name for alert in (*row.assessment.alerts, *row.target_alerts))
    return StateSpan(row.target, verdict.engine, row.t, row.t, verdict.state, verdict.cause, verdict.evidence, ratio, alerts)


def _continues(before: StateSpan, now: StateSpan) -> bool:
    return (before.state, before.cause, before.alerts) == (now.state, now.cause, now.alerts)


def _higher(one: float | None, other: float | None) -> float | None:
    return max((ratio for ratio in (one, other) if ratio is not None), default=None)


def render(rows: Iterable[ReplayRow], console: Console, zone: tzinfo = UTC) -> None:
    """Print a table for each target, with times of day in *zone*."""
    draw = _list if console.width < _NARROW else _table
    for target, own in groupby(spans(rows), key=lambda span: span.target):
        console.print(draw(target, list(own), zone))


def _table(target: str, own: Sequence[StateSpan], zone: tzinfo) -> Table:
    table = Table(title=_title(target, own, zone), title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading, justify in (("from", "right"), ("to", "right"), ("engine", "left"), ("state", "left"), ("ratio", "right")):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("evidence, alerts", ratio=1, overflow="fold")
    for span, (start, end) in zip(own, _times(own, zone), strict=True):
        table.add_row(start, end, _engine(span), _verdict(span), _ratio(span), _evidence(span))
    return table


def _list(target: str, own: Sequence[StateSpan], zone: tzinfo) -> Group:
    """The same for a narrow terminal."""
    parts: list[RenderableType] = [_title(target, own, zone)]
    for span, (start, end) in zip(own, _times(own, zone), strict=True):
        when = f"{start} to {end}  engine "
        parts.append(Text.assemble(when, _engine(span), "  ", _verdict(span), f"  {_ratio(span)}"))
        parts.append(Padding(_evidence(span), (0, 0, 0, 2)))
    return Group(*parts)


def _title(target: str, own: Sequence[StateSpan], zone: tzinfo) -> Text:
    return Text(f"{printable(target)}  {datetime.fromtimestamp(own[0].start, zone):%Y-%m-%d}, times in {zone_name(zone)}")


def _times(own: Sequence[StateSpan], zone: tzinfo) -> list[tuple[str, str]]:
    """Begin and end of each span as times of day, with the day where they are not all of one."""
    found = [tuple(datetime.fromtimestamp(t, zone) for t in (span.start, span.end)) for span in own]
    form = "%H:%M:%S" if len({moment.date() for pair in found for moment in pair}) == 1 else "%m-%d %H:%M:%S"
    return [(start.strftime(form), end.strftime(form)) for start, end in found]


def _engine(span: StateSpan) -> Text:
    """As a text, for what an engine calls itself is no markup."""
    return Text(printable(span.engine.engine) if span.engine else "-")


def _verdict(span: StateSpan) -> Text:
    return Text.assemble((span.state, _STYLES[span.state]), f" {span.cause}")


def _ratio(span: StateSpan) -> str:
    return "-" if span.peak_ratio is None else f"{span.peak_ratio:.0%}"


def _evidence(span: StateSpan) -> Text:
    return Text("; ").join([*(Text(printable(line)) for line in span.evidence), *(Text(name, style="bold") for name in span.alerts)])
