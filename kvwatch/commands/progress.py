"""The bar of a command that takes a while: on standard error, and only where somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kvwatch.check.report import Report
from kvwatch.model import Assessment
from kvwatch.text import number, percent

_Progress = Callable[[float, tuple[Assessment, ...]], None]
"""Called after each scrape with the share of the time that has passed, and what is said at this moment."""


def last_report(reports: Iterable[Report], seconds: float, form: str) -> Report | None:
    """The last of *reports*, which come over *seconds*; Ctrl-C makes the newest so far the last. ``None`` where none has come."""
    report = None
    with _progress_bar(form) as progress, suppress(KeyboardInterrupt):
        for report in reports:
            progress(min(1.0, report.seconds / seconds), report.assessments)
    return report


@contextmanager
def _progress_bar(form: str) -> Iterator[_Progress]:
    """A bar on a person's terminal that says what is seen meanwhile; nothing anywhere else."""
    console = Console(stderr=True)
    if form != "text" or not console.is_terminal:
        yield lambda _share, _said: None
        return
    with Bar(
        TextColumn("watching"), BarColumn(20), TimeRemainingColumn(), TextColumn("{task.description}"), console=console, transient=True
    ) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, said: bar.update(task, completed=share, description=_glance(said))


def bar() -> Bar:
    """A bar with what is under way, how far it is and how long it will take."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    # Standard output is not redirected, or its lines would end up on standard error with the bar.
    return Bar(*columns, console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal)


def _glance(said: tuple[Assessment, ...]) -> str:
    """The engines in a few words each."""
    parts = []
    for assessment in said:
        signals = assessment.signals
        seen = f" {number(signals.running or 0)} running, {number(signals.waiting or 0)} waiting" if signals is not None else ""
        usage = f", KV {percent(signals.kv_usage)}" if signals is not None and signals.kv_usage is not None else ""
        parts.append(f"{assessment.verdict.state}{seen}{usage}")
    return "; ".join(parts)
