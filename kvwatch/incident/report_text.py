"""A report in words: the headline, times as people read them, and the whole of it as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final

from kvwatch.incident.report import NAIVE_SECONDS, NAIVE_USAGE, EngineReport, ReportChange
from kvwatch.model import Change, State
from kvwatch.text import number, percent

STATE_TITLES: Final = {
    State.HEALTHY: "Healthy",
    State.KV_BOUND: "KV-bound",
    State.COMPUTE_BOUND: "Compute-bound",
    State.UNKNOWN: "Unknown",
}
NUMBERS: Final = (
    ("kv_usage", "KV cache usage", "share"),
    ("running", "Running", "count"),
    ("waiting", "Waiting", "count"),
    ("preemption_ratio", "Preemption ratio (2 min)", "share"),
    ("generation_tokens_per_second", "Generated tokens/s", "count"),
    ("time_to_first_token", "Time to first token, P95", "seconds"),
    ("inter_token_latency", "Inter-token latency, P95", "seconds"),
    ("e2e_latency", "End-to-end latency, P99", "seconds"),
)
"""Field of a sample, its title and its unit."""
_SECONDS_COUNT: Final = 600.0
NAIVE_RULE: Final = f"cache > {NAIVE_USAGE:.0%} for {NAIVE_SECONDS / 60:g}m".replace("%", " %")


def moment(t: float, zone: tzinfo = UTC) -> str:
    """A date and time of day in *zone*."""
    return datetime.fromtimestamp(t, zone).strftime("%Y-%m-%d %H:%M:%S")


def clock_of(report: EngineReport, zone: tzinfo = UTC, form: str = "%H:%M:%S") -> Callable[[float], str]:
    """Times of day as *form* has them, with month and day where the report is not of one day."""
    first, last = (datetime.fromtimestamp(t, zone).date() for t in (report.samples[0].t, report.samples[-1].t))
    whole = form if first == last else f"%m-%d {form}"
    return lambda t: datetime.fromtimestamp(t, zone).strftime(whole)


def zone_name(zone: tzinfo) -> str:
    """What a reader calls the zone."""
    return zone.tzname(None) or str(zone)


def lasting(seconds: float) -> str:
    """A duration in its two largest units: ``40 s``, ``2 min 15 s``, ``14 min``, ``2 h 5 min``; seconds only below ten minutes."""
    whole = round(seconds) if seconds < _SECONDS_COUNT else round(seconds / 60) * 60
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    parts = [f"{amount} {unit}" for amount, unit in ((hours, "h"), (minutes, "min"), (rest, "s")) if amount]
    return " ".join(parts) or "0 s"


def shown(value: float | None, unit: str) -> str:
    """A number of `NUMBERS` in its unit; a dash where it is not known."""
    if value is None:
        return "-"
    if unit == "share":
        return percent(value)
    if unit == "seconds":
        return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
    return number(value)


def headline(report: EngineReport, zone: tzinfo = UTC) -> str:
    """What happened, in a sentence or three; every figure is one that was computed."""
    worst = report.worst
    if worst is None:
        return _nothing(report)
    when = f"from {clock_of(report, zone)(worst.t)} {zone_name(zone)}"
    times = sum(change.state is worst.state for change in report.joined())
    longest = f", the longest of {times} times" if times > 1 else ""
    parts = [f"{STATE_TITLES[worst.state]} ({worst.cause.short_name.lower()}) for {lasting(worst.until - worst.t)} {when}{longest}"]
    ratio = report.highest("preemption_ratio", worst.t, worst.until)
    if ratio:
        parts.append(f"at the worst {percent(ratio)} of the requests that left the running batch had been preempted")
    redone = report.highest("recompute_ratio", worst.t, worst.until)
    if redone:
        parts.append(f"up to about {percent(redone)} of the work was done twice (estimate)")
    waiting = report.highest("waiting", worst.t, worst.until)
    if waiting:
        parts.append(f"up to {number(waiting)} requests waited")
    return "; ".join(parts) + "."


def _nothing(report: EngineReport) -> str:
    unknown, healthy = report.seconds_in(State.UNKNOWN), report.seconds_in(State.HEALTHY)
    if not healthy:
        last = report.changes[-1]
        return f"Nothing can be said: {'; '.join(last.evidence)}."
    text = f"Nothing held it back: healthy for {lasting(healthy)}"
    return f"{text}, unknown for {lasting(unknown)}." if unknown else f"{text}."


def advised(change: Change | None) -> str:
    """A piece of advice in one line; empty where there was none."""
    if change is None:
        return ""
    values = "" if change.proposed is None else f" {change.current} -> {change.proposed}" if change.current else f" {change.proposed}"
    return f"{change.lever}{values}: {change.reason}"


def alerts_in_words(report: EngineReport, zone: tzinfo = UTC) -> Sequence[tuple[str, str]]:
    """Each alert with when it fired, and the naive rule beside them."""
    at = clock_of(report, zone)
    found = [(alert.name, f"{at(alert.t)} to {at(alert.until)}") for alert in report.alerts]
    naive = ", ".join(f"{at(span.t)} to {at(span.until)}" for span in report.naive) or "never"
    return [*found, (f"a plain rule, {NAIVE_RULE}", naive)]


def as_markdown(reports: Sequence[EngineReport], zone: tzinfo = UTC) -> str:
    """The reports as Markdown."""
    text = ["# What held vLLM back", ""]
    for report in reports:
        first, last = report.samples[0].t, report.samples[-1].t
        when = f"{moment(first, zone)} to {moment(last, zone)} {zone_name(zone)}"
        text += [f"## {report.name}", "", when, ""]
        text += [f"**{headline(report, zone)}**", "", *((f"{report.remark}.", "") if report.remark else ())]
        text += ["| from | for | state | cause | evidence | advice |", "|---|---|---|---|---|---|"]
        text += [_row(change, clock_of(report, zone)) for change in report.changes]
        text += ["", "| alert | fired |", "|---|---|", *(f"| {name} | {when} |" for name, when in alerts_in_words(report, zone))]
        text += ["", "| number | highest |", "|---|---:|"]
        text += [f"| {title} | {shown(report.highest(name, first, last), unit)} |" for name, title, unit in NUMBERS] + [""]
    return "\n".join(text)


def _row(change: ReportChange, at: Callable[[float], str]) -> str:
    cells = (
        at(change.t),
        lasting(change.until - change.t),
        STATE_TITLES[change.state],
        change.cause.short_name,
        "; ".join(change.evidence),
        advised(change.advice),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
