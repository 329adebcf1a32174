"""A check for a person's terminal, for a pipe, and for a program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import Final

from rich.text import Text

from kvwatch.check.report import Report, capacity, exit_code, five_lines
from kvwatch.check.rules_asked import asked
from kvwatch.config.policy import Policy
from kvwatch.model import Assessment, Change, State
from kvwatch.text import counted, number, percent, printable

Line = tuple[str, str]
"""A style of rich, and a line of text; both forms of text are made from the same lines."""

_STYLES: Final = {
    State.HEALTHY: "bold green",
    State.KV_BOUND: "bold red",
    State.COMPUTE_BOUND: "bold yellow",
    State.UNKNOWN: "bold magenta",
}
_LABEL: Final = 13
_COLUMN: Final = 2 + _LABEL
"""Where the text of a row begins."""
_IN_FULL: Final = 2
"""Changes told with effect and caution: one at a time is the rule, the others can be read in JSON or on the page."""


def render(report: Report, width: int, rules: Policy | None = None) -> Text:
    """For a terminal of that many columns: what does not fit in a line goes on under its own beginning."""
    return Text("\n").join(Text(part, style) for style, text in lines(report, rules) for part in _wrapped(printable(text), width))


def render_plain(report: Report, rules: Policy | None = None) -> str:
    """For a pipe."""
    return "\n".join(printable(text) for _, text in lines(report, rules))


def render_json(report: Report, rules: Policy | None = None) -> str:
    """For a program: ratios 0..1, seconds, tokens; ``null`` where nothing is known."""
    return json.dumps(
        {
            "target": report.target,
            "seconds": report.seconds,
            "scrapes": report.scrapes,
            "failures": report.failures,
            "exit_code": report.exit_code,
            "known": report.known.model_dump(),
            "engines": [_engine_json(assessment, rules) for assessment in report.assessments],
        },
        indent=2,
    )


def lines(report: Report, rules: Policy | None = None) -> Iterator[Line]:
    """Everything a person is told, line by line; every rule as well where *rules* says by which policy they were asked."""
    failed = f", {report.failures} failed" if report.failures else ""
    yield "", f"{report.target}: watched for {number(report.seconds)} s, {report.scrapes + report.failures} scrapes{failed}"
    for assessment in report.assessments:
        yield "", ""
        yield from _engine_lines(assessment, report)
        yield from _rule_lines(assessment, rules)


def _engine_lines(assessment: Assessment, report: Report) -> Iterator[Line]:
    verdict = assessment.verdict
    who = f"{verdict.engine.model_name} engine {verdict.engine.engine}: " if verdict.engine else ""
    yield _STYLES[verdict.state], f"{who}{verdict.state} ({verdict.cause})"
    for evidence in verdict.evidence:
        yield "", _row("evidence", evidence)
    for alert in assessment.alerts:
        yield "red", _row("alert", f"{alert.name} ({alert.severity}): {alert.summary}")
    for label, text in (*_five(assessment), *_capacity(assessment)):
        yield "", _row(label, text)
    for place, change in enumerate(assessment.advice, 1):
        yield from _change_lines(place, change)
    if verdict.state is State.UNKNOWN and not report.failures:
        yield "dim", _row("", "a longer --for shows more")


def _five(assessment: Assessment) -> Iterator[tuple[str, str]]:
    found = five_lines(assessment)
    if (tokens := found.get("generation_tokens_per_second")) is not None:
        yield "throughput", f"{number(tokens)} tokens/s generated"
    if (ratio := found.get("preemption_ratio")) is not None:
        yield "preemptions", f"{percent(ratio)} of the requests that left the running batch were preempted"
    for label, quantiles in (
        ("TTFT", {"p50": "time_to_first_token_p50", "p95": "time_to_first_token_p95"}),
        ("ITL", {"p50": "inter_token_latency_p50", "p99": "inter_token_latency_p99"}),
        ("P99", {"whole request": "e2e_request_latency_p99"}),
    ):
        said = [f"{name} {_seconds(value)}" for name, key in quantiles.items() if (value := found.get(key)) is not None]
        if said:
            yield label, ", ".join(said)


def _capacity(assessment: Assessment) -> Iterator[tuple[str, str]]:
    found = capacity(assessment)
    pool, usage, each, demand, full = (
        found.get(key) for key in ("capacity_tokens", "kv_usage", "tokens_per_sequence", "demand_ratio", "seconds_to_full")
    )
    said = []
    if pool is not None:
        said.append(f"{number(pool)} tokens")
    if usage is not None:
        said.append(f"{percent(usage)} used")
    if each is not None:
        said.append(f"a running sequence holds about {number(each)}")
    if said:
        yield "KV cache", ", ".join(said)
    if assessment.signals is not None and (holds := assessment.signals.sustainable_sequences) is not None:
        yield "it holds", f"{counted(holds, 'sequence')}: {assessment.signals.sustainable_arithmetic}"
    if demand is not None:
        yield "KV demand", f"{demand:.2f} times the pool by running and waiting requests"
    if full is not None and assessment.verdict.state is State.HEALTHY:
        yield "full in", f"{number(full)} s at the present rate"


def _change_lines(place: int, change: Change) -> Iterator[Line]:
    step = change.lever
    if change.proposed is not None:
        step += f" {change.current} → {change.proposed}" if change.current is not None else f" → {change.proposed}"
    elif change.current is not None:
        step += f" (now {change.current})"
    yield "bold cyan", _row("advice" if place == 1 else "", f"{place}. {step}")
    said = (("why", change.reason), ("effect", change.effect), ("caution", change.caution))
    for label, text in said if place <= _IN_FULL else said[:1]:
        yield "", _row("", f"   {label}: {text}")


def _rule_lines(assessment: Assessment, rules: Policy | None) -> Iterator[Line]:
    if rules is None:
        return
    if assessment.signals is None:
        yield "", _row("rules", "none was asked: there are no numbers yet")
        return
    for place, (cause, said) in enumerate(asked(assessment.signals, rules)):
        yield "", _row("rules" if place == 0 else "", f"{cause}: {said}")


def _engine_json(assessment: Assessment, rules: Policy | None) -> dict[str, object]:
    verdict, signals = assessment.verdict, assessment.signals
    listed = {} if rules is None else {"rules": dict(asked(signals, rules)) if signals is not None else {}}
    return {
        "model_name": verdict.engine.model_name if verdict.engine else None,
        "engine": verdict.engine.engine if verdict.engine else None,
        "state": verdict.state,
        "cause": verdict.cause,
        "evidence": list(verdict.evidence),
        "alerts": [alert.name for alert in assessment.alerts],
        "five_lines": five_lines(assessment),
        "capacity": capacity(assessment),
        "advice": [asdict(change) for change in assessment.advice],
        "exit_code": exit_code(assessment),
        **listed,
    }


def _wrapped(text: str, width: int) -> list[str]:
    indent = max(len(text) - len(text.lstrip()), _COLUMN) if text.startswith(" ") else 0
    return wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False) or [""]


def _row(label: str, text: str) -> str:
    return f"  {label.ljust(_LABEL)}{text}".rstrip()


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
