"""What commands use of the outside, and how they show there what they found and what was amiss."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TextIO

from rich.console import Console, RenderableType

from kvwatch.clock import Clock, SystemClock
from kvwatch.poller.fetch import Fetch


@dataclass(frozen=True, slots=True)
class Outside:
    """The network, the time and standard output; tests make their own."""

    fetch: Fetch | None = None
    """How a URL is fetched; where none is given, as the command's flags say."""
    clock: Clock = field(default_factory=SystemClock)
    wait: Callable[[float], None] = time.sleep
    to: TextIO | None = None
    """Standard output, as it is at the time, where none is given."""

    @property
    def out(self) -> TextIO:
        """Where results are written."""
        return self.to or sys.stdout

    def show(self, form: str, *, as_json: Callable[[], str], as_text: Callable[[], str], drawn: Callable[[int], RenderableType]) -> None:
        """Write what was found as *form* (``text`` or ``json``) asks; on a terminal it is *drawn* for so many columns."""
        if form == "json":
            self.out.write(as_json() + "\n")
        elif self.out.isatty():
            console = Console(file=self.out, highlight=False)
            console.print(drawn(console.width))
        else:
            self.out.write(as_text() + "\n")


OUTSIDE: Final = Outside()


def complain(what: str) -> None:
    """Say on standard error what was amiss in a source, one line a time."""
    print(f"kvwatch: {what}", file=sys.stderr)  # noqa: T201 - not a log
