"""``kvwatch record URL -o FILE``: raw scrapes into a recording, to be replayed later or attached to an incident."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console

from kvwatch.check.watching import GIVE_UP_AFTER
from kvwatch.clock import Clock, SystemClock
from kvwatch.commands.arguments import one_metrics_url, positive_duration
from kvwatch.config.settings import PollSettings
from kvwatch.errors import ScrapeError
from kvwatch.incident.recording import Writer
from kvwatch.model import FailureReason
from kvwatch.poller.fetch import Fetch
from kvwatch.poller.target import fetch_as
from kvwatch.process_signals import STOPPING, ProcessSignals, received

DESCRIPTION: Final = "Writes raw scrapes into a recording, to be replayed later or attached to an incident."

_NOTHING_ANSWERED: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvwatch record``."""
    parser.add_argument("url", metavar="URL", help="the vLLM server: host:port, or its /metrics URL")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="a new .jsonl, .jsonl.gz or .jsonl.xz file; of .xz a kill -9 loses up to some thirty scrapes",
    )
    parser.add_argument("--interval", type=positive_duration, default=1.0, metavar="DURATION", help="time between scrapes (default: 1s)")
    parser.add_argument("--for", dest="seconds", type=positive_duration, metavar="DURATION", help="stop after so long (default: on Ctrl-C)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Record until the time is up or somebody stops it; failures are recorded too, and exit code 1 says that nothing ever answered."""
    clock, poll, url = SystemClock(), PollSettings(), one_metrics_url(arguments.url)
    ask = fetch_as(poll, clock)
    console = Console(stderr=True)
    with received(*STOPPING) as signals, Writer(arguments.output, url) as writer, console.status("recording, Ctrl-C ends it") as status:
        scrapes = failures = 0
        last_error = ""
        for _ in _beat(clock, signals, arguments.interval, arguments.seconds):
            scrapes += 1
            if error := _record(writer, ask, url, clock):
                failures, last_error = failures + 1, error
            status.update(f"{scrapes} scrapes recorded, {failures} failed; Ctrl-C ends it")
            if failures == scrapes == GIVE_UP_AFTER and arguments.seconds is None:
                break
    said = f"{arguments.output}: {scrapes} scrapes, {failures} failed"
    dead = failures == scrapes
    if dead and arguments.seconds is None:
        arguments.output.unlink(missing_ok=True)  # else the next try, with the right address, would find it there
    console.print(f"{said}; {url}: {last_error}" if dead else said, markup=False, highlight=False, soft_wrap=True)
    return _NOTHING_ANSWERED if dead else 0


def _beat(clock: Clock, signals: ProcessSignals, interval: float, seconds: float | None) -> Iterator[None]:
    """Yield on every beat of *interval* until *seconds* have passed or a signal has come; beats that were missed are skipped."""
    began = due = clock.monotonic()
    while seconds is None or due - began <= seconds:
        yield
        now = clock.monotonic()
        due += interval * max(1, -(-(now - due) // interval))
        if signals.wait(due - now) is not None:
            return


def _record(writer: Writer, ask: Fetch, url: str, clock: Clock) -> str:
    """Write one scrape; what was wrong if it failed."""
    try:
        body = ask(url)
        t = clock.unix()
        with contextlib.suppress(UnicodeDecodeError):
            writer.body(t, body.decode("utf-8"))
            return ""
        raise ScrapeError(FailureReason.ENCODING, "the body is not UTF-8")  # noqa: TRY301 - recorded like the other failures
    except ScrapeError as error:
        writer.error(clock.unix(), str(error))
        return str(error)
