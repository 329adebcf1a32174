"""What the demo shows in a terminal: the act, live numbers, and what kvwatch has said so far. Plain lines where nobody looks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvwatch.demo.stage import Moment
from kvwatch.model import Assessment, Severity, State, TargetView

STYLES: Final = {State.HEALTHY: "bold green", State.KV_BOUND: "bold red", State.COMPUTE_BOUND: "bold yellow", State.UNKNOWN: "dim"}
_REMEMBERED: Final = 8
_BAR: Final = 24
_WATERMARK: Final = 0.9


@dataclass(frozen=True, slots=True)
class Line:
    """Something kvwatch said, for the log at the foot."""

    text: str
    style: str


class Script:
    """Turns moments into what has to be told: acts, changes of state with their evidence, pages, and the first advice."""

    def __init__(self) -> None:
        self._act: str | None = None
        self._state: tuple[str, str] | None = None
        self._firing: frozenset[str] = frozenset()

    def news(self, moment: Moment) -> list[Line]:
        """The lines this moment adds, oldest first."""
        lines = []
        if moment.act.title != self._act:
            self._act = moment.act.title
            lines.append(Line(f"{moment.act.title}: {moment.act.text}", "bold"))
        assessment = moment.view.assessments[0] if moment.view.assessments else None
        if assessment is not None:
            lines += self._of_state(assessment)
            lines += self._of_alerts(assessment)
        return lines

    def _of_state(self, assessment: Assessment) -> list[Line]:
        verdict = assessment.verdict
        state = (str(verdict.state), str(verdict.cause))
        if state == self._state:
            return []
        self._state = state
        lines = [Line(f"  {verdict.state} / {verdict.cause}: {'; '.join(verdict.evidence)}", STYLES[verdict.state])]
        if assessment.advice and verdict.state in (State.KV_BOUND, State.COMPUTE_BOUND):
            first = assessment.advice[0]
            change = f" {first.current or '?'} → {first.proposed}" if first.proposed else ""
            lines.append(Line(f"  advice: {first.lever}{change}. {first.reason}", "cyan"))
        return lines

    def _of_alerts(self, assessment: Assessment) -> list[Line]:
        firing = {alert.name: alert for alert in assessment.alerts}
        lines = [
            Line(
                f"  {'PAGE (P1)' if alert.severity is Severity.CRITICAL else 'warning'}: {name}. {alert.summary}",
                "bold white on red" if alert.severity is Severity.CRITICAL else "magenta",
            )
            for name, alert in firing.items()
            if name not in self._firing
        ]
        lines += [Line(f"  resolved: {name}", "green") for name in sorted(self._firing - firing.keys())]
        self._firing = frozenset(firing)
        return lines


class Screen:
    """A live picture of the last moment over the last lines."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines: deque[Line] = deque(maxlen=_REMEMBERED)

    def picture(self, moment: Moment, news: list[Line]) -> RenderableType:
        """What to draw now."""
        self._lines.extend(news)
        head = Table.grid(expand=True)
        head.add_column(ratio=1)
        head.add_column(justify="right")
        head.add_row(Text(moment.act.title, style="bold"), ProgressBar(total=1.0, completed=moment.progress, width=_BAR))
        log = Text("\n").join(Text(line.text, style=line.style) for line in self._lines)
        body = Group(head, Text(moment.act.text, style="italic"), Text(), numbers(moment.view), Text(), log)
        return Panel(body, title="kvwatch demo", subtitle=f"status page: {self._url}   Ctrl-C ends", border_style="blue")


def numbers(view: TargetView) -> RenderableType:
    """State and live numbers of the simulated engine."""
    assessment = view.assessments[0] if view.assessments else None
    signals = assessment.signals if assessment else None
    table = Table.grid(padding=(0, 3))
    for _ in range(5):
        table.add_column()
    if assessment is None:
        return Text("not polled yet", style="dim")
    state = assessment.verdict.state
    if signals is None:
        return Text(f"{state} / {assessment.verdict.cause}", style=STYLES[state])
    usage = signals.kv_usage or 0.0
    ratio = signals.slow.preemption_ratio
    table.add_row(
        Text(f"{state} / {assessment.verdict.cause}", style=STYLES[state]),
        Text.assemble(
            "KV cache ",
            ("█" * round(usage * _BAR), "red" if usage > _WATERMARK else "blue"),
            ("░" * (_BAR - round(usage * _BAR)), "dim"),
            f" {usage:.0%}",
        ),
        f"running {signals.running or 0:.0f}, waiting {signals.waiting or 0:.0f}",
        f"evicted {ratio:.0%}" if ratio is not None else "evicted -",
        f"{signals.generation_tokens_per_second or 0:.0f} tokens/s",
    )
    return table


def tell(console: Console, lines: list[Line]) -> None:
    """Plain lines, for a pipe or a log."""
    for line in lines:
        console.print(Text(line.text, style=line.style), soft_wrap=True)
