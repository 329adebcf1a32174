"""``kvwatch check [URL]``: its arguments, its progress bar, and what it prints."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from rich.console import Console

from kvwatch.assess import Judge
from kvwatch.check.live import follow
from kvwatch.check.render import render, render_json, render_plain
from kvwatch.check.report import HEALTHY, Report
from kvwatch.check.watching import Watch, watch, with_version
from kvwatch.clock import Clock, SystemClock
from kvwatch.commands.arguments import add_known_arguments, known_arguments, one_metrics_url, positive_duration
from kvwatch.commands.progress import progress_bar
from kvwatch.config import sources as config
from kvwatch.config.settings import DEFAULT_TARGET, PollSettings
from kvwatch.errors import UsageError
from kvwatch.poller.fetch import Fetch
from kvwatch.poller.target import fetch_as

USUAL_SECONDS: Final = 15.0

DESCRIPTION: Final = "Watches a live vLLM for a while and says what holds it back and what to change."
EPILOG: Final = """\
exit codes: 0 healthy, 1 bound, 2 preemption storm or stalled, 3 unknown or a usage error (of several engines the worst counts)

examples:
  kvwatch check
  kvwatch check vllm:8000 --for 1m --log vllm.log
  kvwatch check vllm:8000 --watch
  kvwatch check http://vllm:8000/metrics --max-num-seqs 64 --format json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvwatch check``."""
    parser.set_defaults(run=run)
    parser.add_argument("url", nargs="?", metavar="URL", help=f"the vLLM server: host:port, or its /metrics URL ({DEFAULT_TARGET})")
    parser.add_argument(
        "--for", dest="seconds", type=positive_duration, metavar="DURATION", help="how long to watch (15s; with --watch until Ctrl-C)"
    )
    parser.add_argument("--interval", type=positive_duration, default=1.0, metavar="DURATION", help="time between scrapes (1s)")
    parser.add_argument("--watch", action="store_true", help="a live view; without a terminal, a line for each change. Exit code 0")
    parser.add_argument("--all", action="store_true", help="list every rule with why it did or did not speak")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    access = parser.add_argument_group("access")
    access.add_argument("--ca-file", type=Path, metavar="FILE", help="authorities that may have signed the server's certificate")
    access.add_argument("--bearer-token-file", type=Path, metavar="FILE", help="a token to send, read from its file")
    add_known_arguments(parser)


def run(
    args: argparse.Namespace,
    *,
    get: Fetch | None = None,
    clock: Clock | None = None,
    wait: Callable[[float], None] = time.sleep,
    out: TextIO | None = None,
) -> int:
    """Watch, print, and return the exit code of the contract. The keyword arguments are for tests."""
    if args.watch and args.format != "text":
        raise UsageError("--watch is for people: for a program, run kvwatch check again and again, or kvwatch run")
    clock, out = clock or SystemClock(), out or sys.stdout
    settings = config.load()
    poll = PollSettings(interval=args.interval, ca_file=args.ca_file, bearer_token_file=args.bearer_token_file)
    ask = get or fetch_as(poll, clock)
    if args.url is None and args.format == "text":
        Console(stderr=True).print(f"no URL given: asking {DEFAULT_TARGET}", markup=False, highlight=False, soft_wrap=True)
    url = one_metrics_url(DEFAULT_TARGET if args.url is None else args.url)
    known = with_version(known_arguments(args, settings.vllm), url, ask)
    policy = settings.policy
    rules = policy if args.all else None
    seconds = args.seconds or (math.inf if args.watch else USUAL_SECONDS)
    how = Watch(url, ask, clock, wait, args.interval, seconds)
    reports = watch(how, Judge(policy, known, args.interval), known)
    if args.watch:
        follow(reports, out, clock, rules)
        return HEALTHY
    report = Report(url, 0.0, 0, 0, known, ())
    with progress_bar(args.format) as progress, suppress(KeyboardInterrupt):
        for report in reports:
            progress(min(1.0, report.seconds / seconds), report.assessments)
    if args.format == "json":
        out.write(render_json(report, rules) + "\n")
    elif out.isatty():
        console = Console(file=out, highlight=False)
        console.print(render(report, console.width, rules))
    else:
        out.write(render_plain(report, rules) + "\n")
    return report.exit_code
