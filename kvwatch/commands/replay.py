"""``kvwatch replay FILE…``: what kvwatch would have said over a recording, or over what a Prometheus has scraped of vLLM."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic_settings import CliSettingsSource
from rich.console import Console

from kvwatch.clock import SystemClock
from kvwatch.commands.arguments import positive_count, positive_duration, write_whole
from kvwatch.commands.outside import complain
from kvwatch.commands.progress import bar
from kvwatch.commands.prometheus_arguments import PrometheusRange, add_prometheus_arguments, prometheus_range
from kvwatch.config.flags import add_judgement_flags
from kvwatch.config.policy import KnownConfig
from kvwatch.config.settings import Settings
from kvwatch.config.sources import load
from kvwatch.errors import KVWatchError, UsageError
from kvwatch.incident.export import Export
from kvwatch.incident.replay import Replayer, ReplayRow
from kvwatch.incident.report import EngineReport, build_report
from kvwatch.incident.report_html import as_html
from kvwatch.incident.report_text import as_markdown
from kvwatch.incident.sources import EntrySource, open_source
from kvwatch.incident.table import render
from kvwatch.runs.drift import read_baseline

DESCRIPTION: Final = "Shows what kvwatch would have said over a recording, a log of vLLM,\nor what a Prometheus has scraped of vLLM."

_REPORTS: Final = {"html": as_html, "md": as_markdown}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvwatch replay``."""
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
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="with --format html or md: where the report goes (standard output)"
    )
    parser.add_argument("--timezone", metavar="ZONE", default="UTC", help="of the times shown, such as Europe/Berlin (UTC)")
    parser.add_argument("--max-num-seqs", type=positive_count, metavar="N", help="what the server was started with, if known")
    parser.add_argument("--max-num-batched-tokens", type=positive_count, metavar="N", help="what the server was started with, if known")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write the scrapes as a recording that replays to the same")
    add_prometheus_arguments(parser)
    parser.set_defaults(run=partial(run, add_judgement_flags(parser)))


def run(flags: CliSettingsSource[Any], arguments: argparse.Namespace) -> int:
    """Replay every file, or a Prometheus. Raises `KVWatchError`."""
    settings, zone = load(arguments, flags), _zone(arguments.timezone)
    with Export(arguments.export) as export:
        _show(arguments, _sources(arguments, settings, export), settings, zone)
    return 0


def _show(arguments: argparse.Namespace, sources: Iterator[Iterator[ReplayRow]], settings: Settings, zone: ZoneInfo) -> None:
    reports = []
    for rows in sources:
        if arguments.format == "jsonl":
            for row in rows:
                print(json.dumps(row.as_json()))  # noqa: T201 - a command's output
        elif arguments.format == "table":
            broken: list[KVWatchError] = []
            render(_until_broken(rows, broken), Console(), zone)
            if broken:
                raise broken[0]
        else:
            reports += build_report(rows, settings)
    if arguments.format in _REPORTS:
        _write_report(arguments, reports, zone)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(f"--timezone {name}: there is no such zone") from error


def _until_broken(rows: Iterator[ReplayRow], broken: list[KVWatchError]) -> Iterator[ReplayRow]:
    """The rows up to where their source breaks off, and into *broken* why: a table is drawn of what there is."""
    try:
        yield from rows
    except KVWatchError as error:
        broken.append(error)


def _write_report(arguments: argparse.Namespace, reports: Sequence[EngineReport], zone: ZoneInfo) -> None:
    """The whole report or nothing."""
    if not reports:
        raise UsageError("there is not one scrape to report on")
    document = _REPORTS[arguments.format](reports, zone)
    if arguments.output is None:
        sys.stdout.write(document)
    else:
        write_whole(arguments.output, document)


def _sources(arguments: argparse.Namespace, settings: Settings, export: Export) -> Iterator[Iterator[ReplayRow]]:
    """The rows of each file, or of the Prometheus."""
    past = prometheus_range(arguments, complain)
    if bool(arguments.files) == (past is not None):
        raise UsageError("replay needs either recordings or --prometheus")
    flags = KnownConfig(max_num_seqs=arguments.max_num_seqs, max_num_batched_tokens=arguments.max_num_batched_tokens)
    known, baseline = KnownConfig.first_of(flags, settings.vllm), read_baseline(settings.baseline)
    if past is not None:
        yield _prometheus_rows(past, Replayer(settings, known, arguments.interval, complain, export.keep, baseline))
        return
    if arguments.export and len(arguments.files) > 1:
        raise UsageError("--export takes one file: a recording is of one target")
    for path in arguments.files:
        with open_source(path, complain, now=SystemClock().unix()) as source:
            known_here = KnownConfig.first_of(flags, source.known, settings.vllm)
            yield _file_rows(source, Replayer(settings, known_here, arguments.interval, complain, export.keep, baseline))


def _file_rows(source: EntrySource, replayer: Replayer) -> Iterator[ReplayRow]:
    with bar() as progress:
        task = progress.add_task(source.name, total=source.size)
        for row in replayer.rows((source.target, entry) for entry in source.entries):
            progress.update(task, completed=source.position())
            yield row


def _prometheus_rows(past: PrometheusRange, replayer: Replayer) -> Iterator[ReplayRow]:
    with bar() as progress:
        task = progress.add_task("Prometheus", total=past.end - past.start)
        for row in replayer.rows(past.source.entries(past.start, past.end)):
            progress.update(task, completed=row.t - past.start)
            yield row
