"""A replay as a table for people: one line per stretch of time in which the verdict stood still."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.table import Table

from kvwatch.incident.replay import Row
from kvwatch.model import Cause, EngineId, State

_STYLES: Final = {State.HEALTHY: "green", State.KV_BOUND: "bold red", State.COMPUTE_BOUND: "yellow", State.UNKNOWN: "dim"}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of rows of one engine with one verdict and the same alerts; times are seconds since the recording's first row."""

    engine: EngineId | None
    start: float
    end: float
    state: State
    cause: Cause
    evidence: tuple[str, ...]
    peak_ratio: float | None
    alerts: tuple[str, ...]


def stretches(rows: Sequence[Row]) -> Iterator[Stretch]:
    """The stretches of *rows*, engine by engine, in order of time."""
    origin = rows[0].t if rows else 0.0
    engines: dict[EngineId | None, list[Row]] = {}
    for row in rows:
        engines.setdefault(row.assessment.verdict.engine, []).append(row)
    for engine, own in engines.items():
        for (state, cause, alerts), run in groupby(own, key=_what_is_said):
            said = list(run)
            ratios = [r.assessment.signals.slow.preemption_ratio for r in said if r.assessment.signals is not None]
            known = [ratio for ratio in ratios if ratio is not None]
            last = said[-1]
            yield Stretch(
                engine,
                said[0].t - origin,
                last.t - origin,
                state,
                cause,
                last.assessment.verdict.evidence,
                max(known, default=None),
                alerts,
            )


def _what_is_said(row: Row) -> tuple[State, Cause, tuple[str, ...]]:
    verdict = row.assessment.verdict
    return verdict.state, verdict.cause, tuple(alert.name for alert in (*row.assessment.alerts, *row.target_alerts))


def render(target: str, rows: Sequence[Row], console: Console) -> None:
    """Print the table of a recording."""
    table = Table(title=target, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading, justify in (("from", "right"), ("to", "right"), ("engine", "left"), ("state", "left"), ("ratio", "right")):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("evidence, alerts", ratio=1, overflow="fold")
    for stretch in stretches(rows):
        alerts = [f"[bold]{name}[/]" for name in stretch.alerts]
        table.add_row(
            _clock(stretch.start),
            _clock(stretch.end),
            stretch.engine.engine if stretch.engine else "-",
            f"[{_STYLES[stretch.state]}]{stretch.state}[/] {stretch.cause}",
            "-" if stretch.peak_ratio is None else f"{stretch.peak_ratio:.0%}",
            "; ".join([*stretch.evidence, *alerts]),
        )
    console.print(table)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
