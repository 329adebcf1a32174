"""Everything the page shows of one engine, in words: the five lines, capacity, advice, alerts, plots and blind spots."""

from __future__ import annotations

from dataclasses import dataclass

from kvwatch.exporter.web.blind_spots import BlindSpot, blind_spots
from kvwatch.exporter.web.chart_history import Point
from kvwatch.exporter.web.charts import Chart, Timeline, charts
from kvwatch.exporter.web.overview import EngineRow
from kvwatch.exporter.web.wording import ABSENT, duration, number, percent, seconds
from kvwatch.model import Alert, Change, Quantiles, Signals, Window


@dataclass(frozen=True, slots=True)
class Fact:
    """A name, a number in words and what it is made of."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Details:
    """One engine in full."""

    row: EngineRow
    known: bool
    """Whether there is anything to show of it, now or in the last half hour."""
    alerts: tuple[Alert, ...]
    advice: tuple[Change, ...]
    five_lines: tuple[Fact, ...]
    baseline: tuple[str, ...]
    """The lines that are compared with a baseline."""
    capacity: tuple[Fact, ...]
    charts: tuple[Chart, ...]
    blind_spots: tuple[BlindSpot, ...]


def details(row: EngineRow, points: tuple[Point, ...], timeline: Timeline, *, storm_ratio: float) -> Details:
    """The details of an engine, its plots over the time of the page."""
    signals = row.assessment.signals
    return Details(
        row=row,
        known=signals is not None or bool(points),
        alerts=(*row.view.alerts, *row.assessment.alerts),
        advice=row.assessment.advice,
        five_lines=_five_lines(signals),
        baseline=() if row.assessment.baseline is None else tuple(line.words for line in row.assessment.baseline.lines),
        capacity=() if signals is None else _capacity(signals),
        charts=charts(points, timeline, interval=row.view.interval, storm_ratio=storm_ratio),
        blind_spots=tuple(blind_spots(row.view, row.assessment)),
    )


def _five_lines(signals: Signals | None) -> tuple[Fact, ...]:
    """Throughput, preemption ratio, TTFT, ITL and P99: any one getting worse is a failure, so they stand together."""
    if signals is None:
        return ()
    return (
        Fact(
            "Throughput",
            f"{number(signals.generation_tokens_per_second)} tokens/s",
            f"{number(signals.prompt_tokens_per_second)} prompt tokens/s",
        ),
        Fact("Preemption ratio", percent(signals.slow.preemption_ratio), _preemptions(signals.slow, signals.fast)),
        _latency("TTFT P95", signals.time_to_first_token, "p95"),
        _latency("ITL P95", signals.inter_token_latency, "p95"),
        _latency("End to end P99", signals.e2e_latency, "p99"),
    )


def _preemptions(slow: Window, fast: Window) -> str:
    slow_for, fast_for = duration(round(slow.seconds)), duration(round(fast.seconds))
    return f"{number(slow.preemptions)} preemptions in {slow_for}; {percent(fast.preemption_ratio)} in {fast_for}"


def _latency(name: str, quantiles: Quantiles | None, shown: str) -> Fact:
    if quantiles is None:
        return Fact(name, ABSENT, "nothing observed")
    others = {"p50": quantiles.p50, "p95": quantiles.p95, "p99": quantiles.p99}
    value = others.pop(shown)
    return Fact(name, seconds(value), ", ".join(f"{label.upper()} {seconds(other)}" for label, other in others.items()))


def _capacity(signals: Signals) -> tuple[Fact, ...]:
    """The pool and what fits in it; what is not known is left out, the blind spots say why."""
    facts = (
        (signals.capacity_tokens, Fact("KV cache", f"{number(signals.capacity_tokens)} tokens", "")),
        (signals.free_tokens, Fact("Free", f"{number(signals.free_tokens, 0)} tokens", f"usage {percent(signals.kv_usage)}")),
        (
            signals.next_prompt_tokens,
            Fact("Next prompt", f"{number(signals.next_prompt_tokens, 0)} tokens", "mean of those admitted lately"),
        ),
        (
            signals.tokens_per_sequence,
            Fact("Per sequence", f"{number(signals.tokens_per_sequence, 0)} tokens", "held by a running sequence"),
        ),
        (
            signals.sustainable_sequences,
            Fact("Safe concurrency", f"{number(signals.sustainable_sequences)} sequences", signals.sustainable_arithmetic or ""),
        ),
        (
            signals.demand_ratio,
            Fact("Demand", percent(signals.demand_ratio), f"of the cache; above {percent(1)} one replica is not enough"),
        ),
        (signals.seconds_to_full, Fact("Full in", _until(signals.seconds_to_full), "at the present rate")),
        (signals.recompute_ratio, Fact("Recomputed", percent(signals.recompute_ratio), "of the work, estimated")),
        (signals.prefix_hit_ratio, Fact("Prefix hits", percent(signals.prefix_hit_ratio), "of prompt tokens were cached")),
    )
    return tuple(fact for value, fact in facts if value is not None)


def _until(value: float | None) -> str:
    return ABSENT if value is None else duration(value)
