"""``kvwatch snapshot``: the five lines of a run (throughput, preemption ratio, TTFT, ITL, end-to-end latency) and its conditions."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rich.console import Console

from kvwatch.check.watching import with_version
from kvwatch.clock import Clock, SystemClock
from kvwatch.commands.arguments import add_known_arguments, known_arguments, one_metrics_url, positive_duration, write_whole
from kvwatch.commands.outside import complain
from kvwatch.commands.progress import bar
from kvwatch.commands.prometheus_arguments import PrometheusRange, add_prometheus_arguments, prometheus_range
from kvwatch.config import sources as config
from kvwatch.config.settings import PollSettings
from kvwatch.errors import ScrapeError, UsageError
from kvwatch.incident.recording import Entry
from kvwatch.incident.sources import open_source
from kvwatch.model import Scrape
from kvwatch.poller.fetch import Fetch
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.target import fetch_as
from kvwatch.poller.vllm import parse_scrape
from kvwatch.runs.meter import Meter
from kvwatch.runs.render import render_run
from kvwatch.runs.run import Run

DESCRIPTION: Final = "Measures a run: from a live server, a recording, or what a Prometheus has scraped."
EPILOG: Final = """\
examples:
  kvwatch snapshot http://127.0.0.1:8000/metrics --for 10m -o base.json
  kvwatch snapshot storm.jsonl.xz -o storm.json
  kvwatch snapshot --prometheus http://127.0.0.1:9090 --start 2h --end 1h -o before.json

Then change one thing, measure again under the same load, and: kvwatch compare base.json candidate.json
"""
_FAILURES_IN_A_ROW: Final = 5
"""Failed scrapes in a row after which a run is given up: the server is gone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvwatch snapshot``."""
    parser.add_argument("source", nargs="?", metavar="URL|FILE", help="a vLLM /metrics URL, a recording, or a log of vLLM")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where the snapshot goes, as JSON (default: shown, not kept)")
    parser.add_argument("--for", dest="seconds", type=positive_duration, default=60.0, metavar="DURATION", help="how long to measure (1m)")
    parser.add_argument("--interval", type=positive_duration, default=5.0, metavar="DURATION", help="time between scrapes (5s)")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    add_prometheus_arguments(parser)
    add_known_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, show, and write where asked to. Raises `KVWatchError`."""
    if bool(arguments.source) == bool(arguments.prometheus):
        raise UsageError("snapshot needs either a URL or recording, or --prometheus")
    found = _measure(arguments)
    document = json.dumps(found.as_json(), allow_nan=False, indent=2) + "\n"
    if arguments.output is not None:
        write_whole(arguments.output, document)
    if arguments.format == "json":
        sys.stdout.write(document)
    else:
        Console().print(render_run(found))
    return 0


def _measure(arguments: argparse.Namespace) -> Run:
    known = known_arguments(arguments, config.load().vllm)
    past = prometheus_range(arguments, complain)
    if past is not None:
        name, scrapes = past.source.name, _from_prometheus(past)
    elif _is_url(arguments.source):
        clock, name = SystemClock(), one_metrics_url(arguments.source)
        ask = fetch_as(PollSettings(interval=arguments.interval), clock)
        known = with_version(known, name, ask)
        scrapes = live(name, ask, clock, interval=arguments.interval, seconds=arguments.seconds)
    else:
        name, scrapes = Path(arguments.source).name, _from_file(Path(arguments.source))
    meter = Meter(known)
    for scrape in scrapes:
        meter.add(scrape)
    try:
        return meter.run(name)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error


def _is_url(source: str) -> bool:
    """Anything that is not a file and could be asked: a host and port are enough."""
    return "://" in source or (":" in source and not Path(source).exists())


def live(
    url: str, ask: Fetch, clock: Clock, *, interval: float, seconds: float, wait: Callable[[float], None] = time.sleep
) -> Iterator[Scrape]:
    """Scrapes of a live server until *seconds* have passed; Ctrl-C ends it early.

    Raises `ScrapeError` when the server is gone, and at once where the first scrape fails.
    """
    began = clock.monotonic()
    failures, answered = 0, False
    memory = LabelMemory()
    with bar() as progress, suppress(KeyboardInterrupt):
        task = progress.add_task("measuring", total=seconds)
        while True:
            now = clock.monotonic()
            try:
                yield parse_scrape(ask(url), now, memory=memory)
                failures, answered = 0, True
            except ScrapeError:
                failures += 1
                if not answered or failures >= _FAILURES_IN_A_ROW:
                    raise
            progress.update(task, completed=now - began)
            if now - began >= seconds:
                return
            wait(max(0.0, min(now + interval, began + seconds) - clock.monotonic()))


def _from_file(path: Path) -> Iterator[Scrape]:
    with open_source(path, complain, now=SystemClock().unix()) as source:
        yield from _scrapes(source.entries)


def _from_prometheus(past: PrometheusRange) -> Iterator[Scrape]:
    targets = past.source.sources(past.start, past.end)
    if len(targets) > 1:
        raise UsageError(f"{len(targets)} vLLM targets were scraped in that time; a snapshot is of one: choose it with --match")
    yield from _scrapes(entry for _, entry in past.source.entries(past.start, past.end))


def _scrapes(entries: Iterator[Entry]) -> Iterator[Scrape]:
    """The entries that hold a scrape of vLLM; the others were outages."""
    memory = LabelMemory()
    for entry in entries:
        if entry.body is not None:
            with suppress(ScrapeError):
                yield parse_scrape(entry.body, entry.t, memory=memory)
