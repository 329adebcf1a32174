"""``kvwatch run``: the daemon. Without any configuration it watches http://127.0.0.1:8000/metrics and serves on :20058."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from pydantic_settings import CliSettingsSource

from kvwatch.config.flags import add_flags
from kvwatch.config.sources import load
from kvwatch.daemon import logging as log
from kvwatch.daemon import process

DESCRIPTION: Final = (
    "Watches vLLM and serves what holds it back, by default of http://127.0.0.1:8000/metrics\nand on port 20058. Every setting has a flag."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvwatch run``."""
    parser.set_defaults(run=partial(run, add_flags(parser)))


def run(flags: CliSettingsSource[Any], arguments: argparse.Namespace) -> int:
    """Run the daemon until a signal ends it. Raises `ConfigError`."""
    settings = load(arguments, flags)
    if arguments.config_check:
        process.check(settings)
        print("the configuration is good")  # noqa: T201 - what --config.check is for
        return 0
    outlet = log.configure_process(settings.log)
    code = process.run(settings, outlet, partial(load, arguments, flags))
    process.leave(code, outlet)
    return code
