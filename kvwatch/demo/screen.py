"""What the demo shows in a terminal: the act, live numbers, and what kvwatch has said so far. Plain lines where nobody looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from kvwatch.demo.stage import Frame
from kvwatch.model import Alert, Assessment, Cause, Severity, Signals, State, TargetView

STYLES: Final = {State.HEALTHY: "bold green", State.KV_BOUND: "bold red", State.COMPUTE_BOUND: "bold yellow", State.UNKNOWN: "dim"}


@dataclass(frozen=True, slots=True)
class ScreenLine:
    """Something to tell: the beginning of an act, or what kvwatch said in it, which stands below it with an indent."""

    text: str
    style: str
    indent: int = 2


class Script:
    """Turns moments into what has to be told: acts, changes of state with their evidence, pages, and the first advice."""

    def __init__(self) -> None:
        self._act: str | None = None
        self._state: tuple[str, str] | None = None
        self._firing: frozenset[str] = frozenset()

    def news(self, moment: Frame) -> list[ScreenLine]:
        """The lines this moment adds, oldest first."""
        lines = []
        if moment.act.title != self._act:
            self._act = moment.act.title
            lines.append(ScreenLine(f"{moment.act.title}: {moment.act.text}", "bold", indent=0))
        assessment = moment.view.assessments[0] if moment.view.assessments else None
        if assessment is not None:
            lines += self._of_state(assessment)
            lines += self._of_alerts((*assessment.alerts, *moment.view.alerts))
        return lines

    def _of_state(self, assessment: Assessment) -> list[ScreenLine]:
        verdict = assessment.verdict
        state = (str(verdict.state), str(verdict.cause))
        if state == self._state:
            return []
        self._state = state
        lines = [ScreenLine(f"{verdict.state} / {verdict.cause}: {'; '.join(verdict.evidence)}", STYLES[verdict.state])]
        if assessment.advice and verdict.state is not State.HEALTHY and verdict.cause is not Cause.UNREACHABLE:
            first = assessment.advice[0]
            change = f" {first.current or ''} → {first.proposed}".replace("  ", " ") if first.proposed else ""
            lines.append(ScreenLine(f"advice: {first.lever}{change}. {first.reason}", "cyan"))
        return lines

    def _of_alerts(self, alerts: Sequence[Alert]) -> list[ScreenLine]:
        firing = {alert.name: alert for alert in alerts}
        lines = [
            ScreenLine(
                f"{'PAGE (P1)' if alert.severity is Severity.CRITICAL else 'warning'}: {name}. {alert.summary}",
                "bold white on red" if alert.severity is Severity.CRITICAL else "magenta",
            )
            for name, alert in firing.items()
            if name not in self._firing
        ]
        lines += [ScreenLine(f"resolved: {name}", "green") for name in sorted(self._firing - firing.keys())]
        self._firing = frozenset(firing)
        return lines


_REMEMBERED: Final = 12
"""Of these, as many of the latest are shown as there is room for."""


class Screen:
    """A live picture of the last moment over the last lines."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines: deque[ScreenLine] = deque(maxlen=_REMEMBERED)

    def picture(self, moment: Frame, news: list[ScreenLine]) -> RenderableType:
        """What to draw now."""
        self._lines.extend(news)
        progress = Text.assemble("this act ", *_bar(moment.progress, "cyan"), style="dim")
        body = Group(progress, numbers(moment.view), Text(), _Latest(tuple(self._lines)))
        return Panel(body, title="kvwatch demo", subtitle=f"status page: {self._url}   Ctrl-C ends", border_style="blue")


_OTHER_ROWS: Final = 9
"""The line above the frame, the frame, progress, three rows of numbers, an empty one, and the cursor's."""


class _Latest:
    """As many of the latest lines as the terminal has room for: what does not fit at its foot would be cut off, and that is the news."""

    def __init__(self, lines: tuple[ScreenLine, ...]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = console.height - _OTHER_ROWS
        shown: list[RenderableType] = []
        for line in reversed(self._lines):
            drawn = Padding(Text(line.text, style=line.style), (0, 0, 0, line.indent), expand=False)
            room -= len(console.render_lines(drawn, options, pad=False))
            if room < 0 and shown:
                break
            shown.append(drawn)
        yield from reversed(shown)


_NEARLY_FULL: Final = 0.9
"""Share of the cache in use from which its bar is red."""


def numbers(view: TargetView) -> RenderableType:
    """State and live numbers of the simulated engine, in three short rows that fit a narrow terminal."""
    assessment = view.assessments[0] if view.assessments else None
    if assessment is None:
        return Text("not polled yet\n\n", style="dim")
    verdict, signals = assessment.verdict, assessment.signals
    state = Text(f"{verdict.state} / {verdict.cause}", style=STYLES[verdict.state])
    if signals is None:
        return Group(state, Text("no numbers: the server does not answer\n" if view.failure else "no numbers yet\n", style="dim"))
    usage = signals.kv_usage or 0.0
    ratio = signals.slow.preemption_ratio
    return Group(
        state,
        Text.assemble(
            "KV cache ", *_bar(usage, "red" if usage > _NEARLY_FULL else "blue"), f" {usage:.0%}   TTFT P95 {_first_token(signals)}"
        ),
        Text(
            f"running {signals.running or 0:.0f}   waiting {signals.waiting or 0:.0f}   "
            f"preempted {'-' if ratio is None else f'{ratio:.0%}'}   {signals.generation_tokens_per_second or 0:.0f} tokens/s"
        ),
    )


def _first_token(signals: Signals) -> str:
    found = signals.time_to_first_token
    return "-" if found is None else f"{found.p95:.1f} s"


_BAR: Final = 24
"""Characters."""


def _bar(share: float, style: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """A bar of fixed width, *share* of it filled."""
    filled = round(min(max(share, 0.0), 1.0) * _BAR)
    return ("█" * filled, style), ("░" * (_BAR - filled), "dim")


def tell(console: Console, lines: list[ScreenLine]) -> None:
    """Plain lines, for a pipe or a log."""
    for line in lines:
        console.print(Text(" " * line.indent + line.text, style=line.style), soft_wrap=True)
