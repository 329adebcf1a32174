"""``kvwatch check [URL]``: its arguments, its progress bar, and what it prints."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Final

from rich.console import Console

from kvwatch.assess import Judge
from kvwatch.check.live import follow
from kvwatch.check.render import render, render_json, render_plain
from kvwatch.check.report import HEALTHY, Report
from kvwatch.check.watching import Watch, watch, with_version
from kvwatch.commands.arguments import add_known_arguments, known_arguments, one_metrics_url, positive_duration
from kvwatch.commands.outside import OUTSIDE, Outside
from kvwatch.commands.progress import last_report
from kvwatch.config import sources as config
from kvwatch.config.settings import DEFAULT_TARGET, PollSettings
from kvwatch.errors import UsageError
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


def run(args: argparse.Namespace, outside: Outside = OUTSIDE) -> int:
    """Watch, print, and return the exit code of the contract."""
    if args.watch and args.format != "text":
        raise UsageError("--watch is for people: for a program, run kvwatch check again and again, or kvwatch run")
    settings = config.load()
    poll = PollSettings(interval=args.interval, ca_file=args.ca_file, bearer_token_file=args.bearer_token_file)
    fetch = outside.fetch or fetch_as(poll, outside.clock)
    if args.url is None and args.format == "text":
        Console(stderr=True).print(f"no URL given: asking {DEFAULT_TARGET}", markup=False, highlight=False, soft_wrap=True)
    url = one_metrics_url(DEFAULT_TARGET if args.url is None else args.url)
    known = with_version(known_arguments(args, settings.vllm), url, fetch)
    rules = settings.policy if args.all else None
    seconds = args.seconds or (math.inf if args.watch else USUAL_SECONDS)
    how = Watch(url, fetch, outside.clock, outside.wait, args.interval, seconds)
    reports = watch(how, Judge(settings.policy, known, args.interval), known)
    if args.watch:
        follow(reports, outside.out, outside.clock, rules)
        return HEALTHY
    report = last_report(reports, seconds, args.format) or Report(url, 0.0, 0, 0, known, ())
    outside.show(
        args.format,
        as_json=lambda: render_json(report, rules),
        as_text=lambda: render_plain(report, rules),
        drawn=lambda width: render(report, width, rules),
    )
    return report.exit_code
