"""Points become SVG path data and axis values; the drawing itself is the template's.

Plots are `WIDTH` x `HEIGHT` units and stretched to the room there is. Time runs from half an hour ago to now, less while the
history is young; gaps stay gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from kvwatch.exporter.web.chart_history import COARSEST_SECONDS, SPAN_SECONDS, Point
from kvwatch.exporter.web.condition import WORDS, Condition
from kvwatch.exporter.web.wording import ABSENT, number, percent, seconds
from kvwatch.svg import curve, nice_top
from kvwatch.text import rfc3339

WIDTH: Final = 360
HEIGHT: Final = 90
_GAP_POLLS: Final = 3
_SPANS: Final = (120.0, 300.0, 600.0, 900.0, SPAN_SECONDS)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The time axis all plots of a page share: it ends at monotonic time ``now`` and is ``span`` seconds long."""

    now: float
    span: float
    unix: float
    """The same moment as ``now``, for people."""

    @classmethod
    def since(cls, oldest: float | None, now: float, unix: float) -> Timeline:
        """The shortest axis that reaches back to the oldest point."""
        age = 0.0 if oldest is None else now - oldest
        return cls(now, next((span for span in _SPANS if span >= age), SPAN_SECONDS), unix)

    def x(self, at: float) -> float:
        """Units from the left of a monotonic time."""
        return (at - self.now + self.span) / self.span * WIDTH

    @property
    def words(self) -> str:
        """Its length."""
        return f"{self.span / 60:g} minutes"

    @property
    def ticks(self) -> tuple[str, str, str]:
        """What stands below its left end, its middle and its right end: times of the clock, which logs and other dashboards have too."""
        left, middle, right = (rfc3339(self.unix - back)[11:16] for back in (self.span, self.span / 2, 0.0))
        return left, middle, f"{right} UTC"


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a plot: its name, the style it is drawn in, its path and its latest value in words."""

    name: str
    style: str
    path: str
    latest: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot with its axis: the values at the top, in the middle and at the bottom."""

    title: str
    lines: tuple[ChartLine, ...]
    top: str
    middle: str
    bottom: str
    limit: float | None
    """Height of the limit line in units from the top, ``None`` without one."""
    limit_name: str
    summary: str
    """The plot in words, for those who do not see it."""


@dataclass(frozen=True, slots=True)
class BandSegment:
    """A stretch of the state band, in units from the left."""

    condition: Condition
    x: float
    width: float


def gap_after(interval: float) -> float:
    """Seconds between two points after which nothing is known of the time between them."""
    return COARSEST_SECONDS + _GAP_POLLS * interval


def path(samples: Iterable[tuple[float, float | None]], timeline: Timeline, *, gap: float, top: float) -> str:
    """SVG path data of samples ``(at, value)``, see `kvwatch.svg.curve`."""
    return curve(samples, timeline.x, height=HEIGHT, gap=gap, top=top)


_LEAST_SECONDS: Final = 0.1
"""The top of a latency's axis where all of them are shorter."""
_LEAST_RATIO: Final = 0.02
"""The top of the ratio's axis where the page's limit is 0."""


def state_band(conditions: Sequence[tuple[float, Condition]], timeline: Timeline, *, interval: float) -> tuple[BandSegment, ...]:
    """Stretches of one condition each, oldest first; what was not watched is left out."""
    start, gap = timeline.now - timeline.span, gap_after(interval)
    stretches: list[BandSegment] = []
    for (began, condition), (following, _) in pairwise([*conditions, (timeline.now, Condition.UNKNOWN)]):
        end = following if following - began <= gap else began + interval
        left, right = timeline.x(max(began, start)), timeline.x(end)
        last = stretches[-1] if stretches else None
        if last is not None and last.condition is condition and abs(last.x + last.width - left) < 0.01:  # noqa: PLR2004 - a hundredth of a unit is no gap
            stretches[-1] = BandSegment(condition, last.x, right - last.x)
        elif right > left:
            stretches.append(BandSegment(condition, left, right - left))
    return tuple(stretches)


def band_summary(stretches: Sequence[BandSegment], timeline: Timeline) -> str:
    """The band in words: minutes in each state."""
    minutes = {one: sum(part.width for part in stretches if part.condition is one) / WIDTH * timeline.span / 60 for one in Condition}
    said = [f"{WORDS[one]} {number(spent)} min" for one, spent in minutes.items() if spent > 0]
    return f"State over the last {timeline.words}: " + (", ".join(said) or "not watched yet")


def charts(points: Sequence[Point], timeline: Timeline, *, interval: float, storm_ratio: float) -> tuple[Chart, ...]:
    """The plots of an engine: KV cache, requests, preemption ratio, throughput, time to first token and time in the queue."""
    gap = gap_after(interval)
    shown = [point for point in points if point.at >= timeline.now - timeline.span]

    def line(name: str, style: str, values: Sequence[float | None], top: float, words: str) -> ChartLine:
        return ChartLine(name, style, path(zip([point.at for point in shown], values, strict=True), timeline, gap=gap, top=top), words)

    def summary(title: str, columns: Sequence[tuple[str, Sequence[float | None]]], words: Callable[[float | None], str]) -> str:
        return f"{title} over the last {timeline.words}: {_told(columns, words)}"

    def column(field: str) -> list[float | None]:
        return [getattr(point, field) for point in shown]

    def latency(title: str, values: Sequence[float | None]) -> Chart:
        top = nice_top(_highest(values), _LEAST_SECONDS)
        return Chart(
            title,
            (line("P95", "latency", values, top, seconds(_latest(values))),),
            *(seconds(top), seconds(top / 2), "0"),
            limit=None,
            limit_name="",
            summary=summary(title, [("P95", values)], seconds),
        )

    mean, peak = column("kv_mean"), column("kv_peak")
    running, waiting = column("running"), column("waiting")
    ratio, tokens = column("preemption_ratio"), column("tokens_per_second")
    requests_top = nice_top(_highest(running, waiting), 4.0)
    ratio_top = min(nice_top(_highest(ratio), max(2 * storm_ratio, _LEAST_RATIO)), 1.0)
    tokens_top = nice_top(_highest(tokens), 10.0)
    return (
        Chart(
            "KV cache usage",
            (
                line("mean", "mean", mean, 1.0, percent(_latest(mean))),
                line("peak", "peak", peak, 1.0, percent(_latest(peak))),
            ),
            *("100 %", "50 %", "0"),
            limit=None,
            limit_name="",
            summary=summary("KV cache usage", [("mean", mean), ("peak", peak)], percent),
        ),
        Chart(
            "Requests",
            (
                line("running", "running", running, requests_top, number(_latest(running))),
                line("waiting", "waiting", waiting, requests_top, number(_latest(waiting))),
            ),
            *(number(requests_top), number(requests_top / 2), "0"),
            limit=None,
            limit_name="",
            summary=summary("Requests", [("running", running), ("waiting", waiting)], number),
        ),
        Chart(
            "Preemption ratio",
            (line("ratio", "ratio", ratio, ratio_top, percent(_latest(ratio))),),
            *(percent(ratio_top), percent(ratio_top / 2), "0"),
            limit=HEIGHT - storm_ratio / ratio_top * HEIGHT,
            limit_name=f"page at {percent(storm_ratio)}",
            summary=summary("Preemption ratio", [("fast window", ratio)], percent),
        ),
        Chart(
            "Generated tokens per second",
            (line("tokens/s", "tokens", tokens, tokens_top, number(_latest(tokens))),),
            *(number(tokens_top), number(tokens_top / 2), "0"),
            limit=None,
            limit_name="",
            summary=summary("Generated tokens per second", [("tokens/s", tokens)], number),
        ),
        latency("Time to first token, P95", column("first_token")),
        latency("Time in the queue, P95", column("queue_time")),
    )


def _highest(*columns: Sequence[float | None]) -> float:
    return max((value for column in columns for value in column if value is not None), default=0.0)


def _latest(column: Sequence[float | None]) -> float | None:
    return column[-1] if column else None


def _told(columns: Sequence[tuple[str, Sequence[float | None]]], words: Callable[[float | None], str]) -> str:
    parts = []
    for name, column in columns:
        known = [value for value in column if value is not None]
        parts.append(f"{name} {words(_latest(column))} now, {words(min(known))} to {words(max(known))}" if known else f"{name} {ABSENT}")
    return "; ".join(parts)
