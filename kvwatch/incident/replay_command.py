"""``kvwatch replay FILE…``: what kvwatch would have said over a recording."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kvwatch.arguments import positive_count, positive_duration
from kvwatch.incident.recording import Entry, Reader, decimated
from kvwatch.incident.replay import Row, replay
from kvwatch.incident.table import render
from kvwatch.judge import judge_for
from kvwatch.settings import KnownConfigSettings, Settings

if TYPE_CHECKING:
    from kvwatch.arguments import Subparsers

_LOOK_AHEAD: Final = 20
_SLOWEST_GUESS: Final = 60.0


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """The subcommand's arguments."""
    parser = subparsers.add_parser("replay", help=summary, description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a recording: .jsonl, .jsonl.gz or .jsonl.xz")
    parser.add_argument("--format", choices=("table", "jsonl"), default="table", help="default: %(default)s")
    parser.add_argument(
        "--interval", type=positive_duration, metavar="DURATION", help="use one scrape in so long, as a daemon of that interval would"
    )
    parser.add_argument("--max-num-seqs", type=positive_count, metavar="N", help="what the server was started with, if known")
    parser.add_argument("--max-num-batched-tokens", type=positive_count, metavar="N", help="what the server was started with, if known")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay every file; raises `RecordingError` for one that cannot be read."""
    known = KnownConfigSettings(max_num_seqs=arguments.max_num_seqs, max_num_batched_tokens=arguments.max_num_batched_tokens)
    for path in arguments.files:
        with Reader(path, _complain) as reader:
            rows = _rows(reader, arguments.interval, known)
            if arguments.format == "jsonl":
                for row in rows:
                    print(json.dumps(row.as_json()))  # noqa: T201 - a command's output
            else:
                render(reader.target, list(rows), Console())
    return 0


def _complain(what: str) -> None:
    print(f"kvwatch: {what}", file=sys.stderr)  # noqa: T201 - one line per bad line of a recording


def _rows(reader: Reader, interval: float | None, known: KnownConfigSettings) -> Iterator[Row]:
    entries = iter(reader)
    if interval is not None:
        entries = decimated(entries, interval)
    first = list(islice(entries, _LOOK_AHEAD))
    judge = judge_for(Settings(), known, interval=interval or _spacing(first))
    with _progress() as progress:
        task = progress.add_task(reader.name, total=reader.size)
        for row in replay(chain(first, entries), reader.target, judge):
            progress.update(task, completed=reader.position())
            yield row


def _spacing(entries: Sequence[Entry]) -> float:
    """How often the recorder asked: the median time between scrapes, or kvwatch's own default where there is one scrape."""
    gaps = [after.t - before.t for before, after in pairwise(entries) if after.t > before.t]
    return min(statistics.median(gaps), _SLOWEST_GUESS) if gaps else Settings().poll.interval


def _progress() -> Progress:
    """On standard error, and only where somebody looks."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
