"""``kvwatch demo``: the daemon against the built-in simulated vLLM whose cache runs full. Needs no GPU, no network, no root."""

from __future__ import annotations

import argparse
import itertools
from contextlib import ExitStack
from typing import Final

from rich.console import Console
from rich.live import Live

from kvwatch.clock import SystemClock
from kvwatch.config.web import WebSettings
from kvwatch.daemon import logging as log
from kvwatch.demo.acts import SCENARIOS
from kvwatch.demo.screen import Screen, Script, tell
from kvwatch.demo.stage import Stage
from kvwatch.errors import ConfigError, UsageError
from kvwatch.process_signals import STOPPING, ProcessSignals, received

DESCRIPTION: Final = "The daemon against a built-in simulated vLLM whose KV cache runs full.\nNeeds no GPU, no network, no root."

_FRAME_SECONDS: Final = 0.2
_USUAL: Final = "127.0.0.1:20058"
_NEXT: Final = """
That was a simulated server. With one of yours:
  kvwatch check HOST:8000             one diagnosis, now
  kvwatch check HOST:8000 --watch     the same, live
  kvwatch run HOST:8000               the daemon, with this status page and metrics for Prometheus
What else the demo shows, with kvwatch demo --scenario NAME:
  {scenarios}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvwatch demo``."""
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="story", help="which story (default: %(default)s)")
    parser.add_argument("--speed", type=_speed, default=8.0, help="virtual seconds per second (default: %(default)s, about a minute)")
    parser.add_argument("--forever", action="store_true", help="start again when the scenario has ended")
    parser.add_argument(
        "--web.listen-address", dest="listen", metavar="ADDRESS", help="default: 127.0.0.1:20058, or any free port if taken"
    )
    parser.set_defaults(run=run)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= 60:  # noqa: PLR2004 - faster than that, polls become shorter than a scrape
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed between 0 and 60")
    return speed


def run(arguments: argparse.Namespace) -> int:
    """Play the scenario once, or until somebody stops it."""
    log.silence()  # the screen says the same
    try:
        web = None if arguments.listen is None else WebSettings(listen_address=arguments.listen)
    except ValueError as error:
        raise UsageError(f"{arguments.listen}: not a listen address: write host:port") from error
    with received(*STOPPING) as signals, ExitStack() as opened:
        _perform(_stage(opened, arguments, web), arguments, signals)
    Console().print(
        _NEXT.format(scenarios=", ".join(name for name in SCENARIOS if name != arguments.scenario)), highlight=False, soft_wrap=True
    )
    return 0


def _stage(opened: ExitStack, arguments: argparse.Namespace, web: WebSettings | None) -> Stage:
    """On the address asked for; else on the usual one, or on any free port where somebody has that, such as another demo."""
    clock = SystemClock()
    if web is not None:
        return opened.enter_context(Stage(clock, arguments.speed, web))
    try:
        return opened.enter_context(Stage(clock, arguments.speed, WebSettings(listen_address=_USUAL)))
    except ConfigError:
        return opened.enter_context(Stage(clock, arguments.speed, WebSettings(listen_address="127.0.0.1:0")))


def _perform(stage: Stage, arguments: argparse.Namespace, signals: ProcessSignals) -> None:
    acts = SCENARIOS[arguments.scenario]
    shows = itertools.repeat(acts) if arguments.forever else iter([acts])
    moments = itertools.chain.from_iterable(stage.play(show) for show in shows)
    console, script, screen = Console(), Script(), Screen(stage.url)
    console.print(f"status page: {stage.url}", highlight=False)
    if not console.is_terminal:
        for moment in moments:
            tell(console, script.news(moment))
            if signals.wait(_FRAME_SECONDS) is not None:
                return
        return
    with Live(console=console, auto_refresh=False) as live:
        for moment in moments:
            live.update(screen.picture(moment, script.news(moment)), refresh=True)
            if signals.wait(_FRAME_SECONDS) is not None:
                return
