"""``kvwatch replay FILE…``: what kvwatch would have said over a recording, or over what a Prometheus has scraped of vLLM."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kvwatch.assess import Judge, first_known, judge_for
from kvwatch.clock import SystemClock
from kvwatch.commands.arguments import positive_count, positive_duration, unix_time, write_whole
from kvwatch.config.policy import KnownConfig
from kvwatch.config.settings import Settings
from kvwatch.errors import KVWatchError, UsageError
from kvwatch.incident.prometheus import Prometheus
from kvwatch.incident.recording import Decimator, Entry
from kvwatch.incident.replay import ReplayRow, rows_of
from kvwatch.incident.report import EngineReport, build_report
from kvwatch.incident.report_html import as_html
from kvwatch.incident.report_text import as_markdown
from kvwatch.incident.sources import EntrySource, open_source
from kvwatch.incident.table import render
from kvwatch.poller.label_memory import LabelMemory

if TYPE_CHECKING:
    from kvwatch.commands.arguments import Subparsers

_REPORTS: Final = {"html": as_html, "md": as_markdown}
_LOOK_AHEAD: Final = 100
"""Scrapes looked at to see how often a recorder asked."""
_SLOWEST_GUESS: Final = 60.0
_DEFAULT_SPAN: Final = "1h"


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """The subcommand's arguments."""
    parser = subparsers.add_parser("replay", help=summary, description=(__doc__ or "").replace("``", ""))
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="a recording (.jsonl, .jsonl.gz, .jsonl.xz), or a log of vLLM (plain, gzip or xz; - for standard input)",
    )
    parser.add_argument("--format", choices=("table", "jsonl", "html", "md"), default="table", help="default: %(default)s")
    parser.add_argument(
        "--interval",
        "--step",
        type=positive_duration,
        metavar="DURATION",
        help="use one scrape in so long, as a daemon of that interval would",
    )
    parser.add_argument("--prometheus", metavar="URL", help="instead of files: a Prometheus that has scraped vLLM")
    parser.add_argument(
        "--start",
        metavar="TIME",
        help=f"with --prometheus: RFC 3339 (UTC without an offset), unix seconds or so long ago (default: {_DEFAULT_SPAN})",
    )
    parser.add_argument("--end", metavar="TIME", help="with --prometheus: the same (default: now)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="with --format html or md: where the report goes (standard output)"
    )
    parser.add_argument("--timezone", metavar="ZONE", default="UTC", help="with --format html or md: such as Europe/Berlin (UTC)")
    parser.add_argument("--max-num-seqs", type=positive_count, metavar="N", help="what the server was started with, if known")
    parser.add_argument("--max-num-batched-tokens", type=positive_count, metavar="N", help="what the server was started with, if known")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay every file, or a Prometheus. Raises `RecordingError`, `PrometheusError`, `UsageError`."""
    known = KnownConfig(max_num_seqs=arguments.max_num_seqs, max_num_batched_tokens=arguments.max_num_batched_tokens)
    reports = []
    for rows in _sources(arguments, known):
        if arguments.format == "jsonl":
            for row in rows:
                print(json.dumps(row.as_json()))  # noqa: T201 - a command's output
        elif arguments.format == "table":
            broken: list[KVWatchError] = []
            render(_until_broken(rows, broken), Console())
            if broken:
                raise broken[0]
        else:
            reports += build_report(rows)
    if arguments.format in _REPORTS:
        _write_report(arguments, reports)
    return 0


def _until_broken(rows: Iterator[ReplayRow], broken: list[KVWatchError]) -> Iterator[ReplayRow]:
    """The rows up to where their source breaks off, and into *broken* why: a table is drawn of what there is."""
    try:
        yield from rows
    except KVWatchError as error:
        broken.append(error)


def _write_report(arguments: argparse.Namespace, reports: Sequence[EngineReport]) -> None:
    """The whole report or nothing."""
    try:
        zone = ZoneInfo(arguments.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(f"--timezone {arguments.timezone}: there is no such zone") from error
    if not reports:
        raise UsageError("there is not one scrape to report on")
    document = _REPORTS[arguments.format](reports, zone)
    if arguments.output is None:
        sys.stdout.write(document)
    else:
        write_whole(arguments.output, document)


def _sources(arguments: argparse.Namespace, known: KnownConfig) -> Iterator[Iterator[ReplayRow]]:
    """The rows of each file, or of the Prometheus."""
    if bool(arguments.files) == bool(arguments.prometheus):
        raise UsageError("replay needs either recordings or --prometheus")
    if arguments.prometheus:
        yield _prometheus_rows(arguments, known)
        return
    if arguments.start or arguments.end:
        raise UsageError("--start and --end belong to --prometheus")
    for path in arguments.files:
        with open_source(path, _complain, now=SystemClock().unix()) as source:
            yield _file_rows(source, arguments.interval, first_known(known, source.known))


def _file_rows(source: EntrySource, interval: float | None, known: KnownConfig) -> Iterator[ReplayRow]:
    with _progress() as progress:
        task = progress.add_task(source.name, total=source.size)
        for row in _rows(((source.target, entry) for entry in source.entries), interval, known):
            progress.update(task, completed=source.position())
            yield row


def _prometheus_rows(arguments: argparse.Namespace, known: KnownConfig) -> Iterator[ReplayRow]:
    now = SystemClock().unix()
    start, end = unix_time("--start", arguments.start or _DEFAULT_SPAN, now), unix_time("--end", arguments.end or "0s", now)
    if start >= end:
        raise UsageError("--start must be before --end")
    with _progress() as progress:
        task = progress.add_task("Prometheus", total=end - start)
        for row in _rows(Prometheus(arguments.prometheus).entries(start, end), arguments.interval, known):
            progress.update(task, completed=row.t - start)
            yield row


def _rows(entries: Iterator[tuple[str, Entry]], interval: float | None, known: KnownConfig) -> Iterator[ReplayRow]:
    """Rows of scrapes of one or more targets, each with a judge of its own, in the order of the scrapes."""
    first, rest = _look_ahead(entries)
    spacing = interval or _spacing(first)
    judges: dict[str, Judge] = {}
    memories: dict[str, LabelMemory] = defaultdict(LabelMemory)
    decimators: dict[str, Decimator] = {}
    for target, entry in chain(first, rest):
        if interval is not None and not decimators.setdefault(target, Decimator(interval)).wants(entry.t):
            continue
        if target not in judges:
            judges[target] = judge_for(Settings(), known, interval=spacing)
        yield from rows_of(entry, target, judges[target], memories[target])


def _look_ahead(entries: Iterator[tuple[str, Entry]]) -> tuple[list[tuple[str, Entry]], Iterator[tuple[str, Entry]]]:
    """The first scrapes and the others. A source that breaks off among the first does so after them, not before."""
    first: list[tuple[str, Entry]] = []
    try:
        first.extend(islice(entries, _LOOK_AHEAD))
    except KVWatchError as error:
        return first, _broken_off(error)
    return first, entries


def _broken_off(error: KVWatchError) -> Iterator[tuple[str, Entry]]:
    raise error
    yield


def _spacing(entries: Sequence[tuple[str, Entry]]) -> float:
    """How often one target was asked: the median time between scrapes, or kvwatch's own default where there is one scrape."""
    times: dict[str, list[float]] = {}
    for target, entry in entries:
        times.setdefault(target, []).append(entry.t)
    gaps = [after - before for own in times.values() for before, after in pairwise(own) if after > before]
    return min(statistics.median(gaps), _SLOWEST_GUESS) if gaps else Settings().poll.interval


def _complain(what: str) -> None:
    print(f"kvwatch: {what}", file=sys.stderr)  # noqa: T201 - one line per bad line of a recording


def _progress() -> Progress:
    """On standard error, and only where somebody looks."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    # Standard output is not redirected, or its lines would end up on standard error with the bar.
    return Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal)
