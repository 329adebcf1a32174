"""``check --watch``: what is known now, drawn anew after each scrape; without a terminal, a line for each change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvwatch.check.render import render
from kvwatch.check.report import Report
from kvwatch.clock import Clock
from kvwatch.config.policy import Policy
from kvwatch.model import Assessment, EngineId
from kvwatch.text import printable, rfc3339


def follow(reports: Iterable[Report], out: TextIO, clock: Clock, rules: Policy | None) -> None:
    """Show *reports* until they end or Ctrl-C ends them."""
    with suppress(KeyboardInterrupt):
        if out.isatty():
            _draw(reports, Console(file=out, highlight=False), rules)
        else:
            changes = Changes()
            for report in reports:
                out.writelines(f"{rfc3339(clock.unix())} {line}\n" for line in changes.of(report))
                out.flush()


def _draw(reports: Iterable[Report], console: Console, rules: Policy | None) -> None:
    """As often as there is a scrape, and no oftener; the last picture stays when it ends."""
    with Live(console=console, auto_refresh=False) as live:
        for report in reports:
            picture = render(report, console.width, rules)
            live.update(Text("\n").join([picture, Text("\nCtrl-C ends", "dim")]), refresh=True)


class Changes:
    """Which lines a report adds to those before it: changes of state, cause or alerts, each with its evidence."""

    def __init__(self) -> None:
        self._before: dict[EngineId | None, tuple[object, ...]] = {}

    def of(self, report: Report) -> Iterator[str]:
        """A line per engine of which something else is said than before; an engine that is gone is forgotten."""
        now = {assessment.verdict.engine: assessment for assessment in report.assessments}
        for engine, assessment in now.items():
            if self._before.get(engine) != _word(assessment):
                yield printable(_line(engine, assessment))
        self._before = {engine: _word(assessment) for engine, assessment in now.items()}


def _word(assessment: Assessment) -> tuple[object, ...]:
    verdict = assessment.verdict
    return verdict.state, verdict.cause, tuple(alert.name for alert in assessment.alerts)


def _line(engine: EngineId | None, assessment: Assessment) -> str:
    verdict = assessment.verdict
    who = f"{engine.model_name} engine {engine.engine}: " if engine else ""
    firing = f" [firing: {', '.join(alert.name for alert in assessment.alerts)}]" if assessment.alerts else ""
    first = next(iter(assessment.advice), None)
    advice = f"; advice: {first.lever}{f' → {first.proposed}' if first.proposed else ''}" if first else ""
    return f"{who}{verdict.state} ({verdict.cause}){firing}: {'; '.join(verdict.evidence)}{advice}"
