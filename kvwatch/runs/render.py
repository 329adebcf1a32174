"""Runs, comparisons and ladders for people: a terminal, Markdown for a pull request, JSON for scripts. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvwatch.runs.compare import ComparedLine, Comparison, LineOutcome, LineResult
from kvwatch.runs.ladder import Ladder
from kvwatch.runs.run import Percentiles, Run
from kvwatch.text import number, percent

_ABSENT = "-"
_STYLES = {LineOutcome.WORSE: "bold red", LineOutcome.BETTER: "green", LineOutcome.SAME: "", LineOutcome.MISSING: "dim"}
_BAR = 22
"""Columns of the longest bar of a ladder."""


def run_rows(run: Run) -> Iterable[tuple[str, str]]:
    """A run as label and value: the five lines, then its conditions."""
    lines, conditions = run.lines, run.conditions
    yield "throughput", f"{_rate(lines.generated_tokens_per_second)} generated, {_rate(lines.total_tokens_per_second)} in all"
    yield "preemption ratio", _ABSENT if lines.preemption_ratio is None else percent(lines.preemption_ratio)
    yield "time to first token", _latency(lines.time_to_first_token)
    yield "inter-token latency", _latency(lines.inter_token_latency)
    yield "end-to-end latency", _latency(lines.e2e_latency)
    finished = _ABSENT if conditions.requests is None else number(conditions.requests)
    yield "requests", f"{finished} finished in {number(run.seconds)} s"
    if conditions.mean_running is not None and conditions.mean_waiting is not None:
        yield "load", f"{number(conditions.mean_running)} running, {number(conditions.mean_waiting)} waiting on average"
    if conditions.mean_prompt_tokens is not None and conditions.mean_output_tokens is not None:
        yield "lengths", f"prompts of {number(conditions.mean_prompt_tokens)} tokens, outputs of {number(conditions.mean_output_tokens)}"


def render_run(run: Run) -> RenderableType:
    """A run for a terminal."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for label, value in run_rows(run):
        table.add_row(label, Text(value))
    return Group(Text(run.source, style="bold"), table)


def render_comparison(found: Comparison) -> RenderableType:
    """A comparison for a terminal."""
    parts: list[RenderableType] = [Text(note) for note in found.notes]
    if found.refusals:
        return Group(*parts, *(Text(f"not compared: {why}", style="yellow") for why in found.refusals))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("line", "base", "candidate", "change", "tolerance", "verdict"):
        table.add_column(heading, justify="left" if heading in ("line", "verdict") else "right")
    for result in found.results:
        table.add_row(*_cells(result), Text(result.outcome, style=_STYLES[result.outcome]))
    verdict = Text("regression", style="bold red") if found.regressed else Text("no regression", style="green")
    return Group(*parts, table, verdict)


def comparison_as_markdown(found: Comparison) -> str:
    """A comparison as a Markdown table."""
    text = [f"- {note}" for note in found.notes]
    text += [f"- not compared: {why}" for why in found.refusals]
    if not found.refusals:
        text += ["", "| line | base | candidate | change | tolerance | verdict |", "|---|---:|---:|---:|---:|---|"]
        text += [f"| {' | '.join(_cells(result))} | {result.outcome} |" for result in found.results]
        text += ["", "**regression**" if found.regressed else "no regression"]
    return "\n".join(text).strip() + "\n"


def comparison_as_json(found: Comparison) -> str:
    """A comparison as JSON: ``regressed``, ``refusals``, ``notes``, and a line each with base, candidate, change, tolerance, outcome."""
    lines = {
        result.line.name: {name: getattr(result, name) for name in ("base", "candidate", "change", "tolerance", "outcome")}
        for result in found.results
    }
    document = {"regressed": found.regressed, "refusals": found.refusals, "notes": found.notes, "lines": lines}
    return json.dumps(document, allow_nan=False, indent=2)


def render_ladder(found: Ladder) -> RenderableType:
    """A ladder for a terminal of 80 columns: a bar of throughput and the latencies, a row a rung."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (found.axis.title, "tokens/s", "generated", "TTFT P95", "ITL P95", "preempted"):
        table.add_column(heading, justify="left" if heading in ("generated", found.axis.title) else "right", no_wrap=True)
    most = max(run.lines.generated_tokens_per_second or 0.0 for run in found.rungs)
    for index, run in enumerate(found.rungs):
        bar = "█" * max(1, round(_BAR * (run.lines.generated_tokens_per_second or 0.0) / most)) if most else ""
        knee = index == found.knee
        value, throughput, *rest = _rung(found, run)
        table.add_row(f"{value} <- knee" if knee else value, throughput, bar, *rest, style="bold" if knee else "")
    return Group(table, Text(found.verdict))


def ladder_as_markdown(found: Ladder) -> str:
    """A ladder as a Markdown table and its verdict."""
    head = [f"| {found.axis.title} | generated tokens/s | TTFT P95 | ITL P95 | preempted |", "|---:|---:|---:|---:|---:|"]
    rows = [f"| {' | '.join(_rung(found, run))} |" for run in found.rungs]
    return "\n".join([*head, *rows, "", found.verdict]) + "\n"


def ladder_as_json(found: Ladder) -> str:
    """A ladder as JSON: the runs in order, the axis, the index of the knee and the verdict."""
    rungs = [{"value": found.axis.read(run), **dataclasses.asdict(run)} for run in found.rungs]
    return json.dumps({"axis": found.axis.name, "knee": found.knee, "verdict": found.verdict, "rungs": rungs}, allow_nan=False, indent=2)


def _rung(found: Ladder, run: Run) -> Sequence[str]:
    ratio = run.lines.preemption_ratio
    return (
        number(found.axis.read(run) or 0.0),
        number(run.lines.generated_tokens_per_second or 0.0),
        _seconds(run.lines.time_to_first_token.p95),
        _seconds(run.lines.inter_token_latency.p95),
        _ABSENT if ratio is None else percent(ratio),
    )


def _cells(result: LineResult) -> tuple[str, str, str, str, str]:
    line = result.line
    change = result.change_shown or _ABSENT
    tolerance = f"{result.tolerance:.0%}".replace("%", " %")
    return line.title, _value(line, result.base), _value(line, result.candidate), change, tolerance


def _value(line: ComparedLine, value: float | None) -> str:
    return _ABSENT if value is None else line.shown(value)


def _seconds(value: float | None) -> str:
    if value is None:
        return _ABSENT
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _latency(found: Percentiles) -> str:
    return ", ".join(f"{name.upper()} {_seconds(getattr(found, name))}" for name in ("p50", "p95", "p99"))


def _rate(value: float | None) -> str:
    return _ABSENT if value is None else f"{number(value)} tokens/s"
