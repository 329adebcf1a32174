"""``kvwatch demo``: the daemon against the built-in simulated vLLM whose cache runs full. Needs no GPU, no network, no root."""

from __future__ import annotations

import argparse
import itertools
import socket
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live

from kvwatch.clock import SystemClock
from kvwatch.config.web import WebSettings
from kvwatch.daemon import logging as log
from kvwatch.demo.acts import SCENARIOS
from kvwatch.demo.screen import Screen, Script, tell
from kvwatch.demo.stage import Stage
from kvwatch.errors import UsageError
from kvwatch.process_signals import STOPPING, ProcessSignals, received

if TYPE_CHECKING:
    from kvwatch.commands.arguments import Subparsers

_FRAME_SECONDS: Final = 0.2
_USUAL: Final = ("127.0.0.1", 20058)


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """The subcommand's arguments."""
    parser = subparsers.add_parser("demo", help=summary, description=(__doc__ or "").replace("``", ""))
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="story", help="which story (default: %(default)s)")
    parser.add_argument("--speed", type=_speed, default=8.0, help="virtual seconds per second (default: %(default)s, about a minute)")
    parser.add_argument("--forever", action="store_true", help="start again when the story has ended")
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
    """Tell the story once, or until somebody stops it."""
    log.silence()  # the screen tells the same story
    try:
        web = WebSettings(listen_address=_listen_address(arguments.listen))
    except ValueError as error:
        raise UsageError(f"{arguments.listen}: not a listen address: write host:port") from error
    with received(*STOPPING) as signals, Stage(SystemClock(), arguments.speed, web) as stage:
        _perform(stage, arguments, signals)
    return 0


def _listen_address(wanted: str | None) -> str:
    """The address asked for; else the usual one on loopback, or any free port where somebody has that."""
    if wanted is not None:
        return wanted
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(_USUAL)
        except OSError:
            return "127.0.0.1:0"
    return "{}:{}".format(*_USUAL)


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
