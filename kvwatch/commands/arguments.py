"""What several subcommands ask of argparse."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from kvwatch.config.values import check_url, parse_duration
from kvwatch.errors import UsageError

if TYPE_CHECKING:
    Subparsers: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - argparse gives it no public name


def positive_duration(text: str) -> float:
    """Seconds of a duration such as ``5s`` or ``1m30s``, for ``type=``."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds <= 0:
        raise argparse.ArgumentTypeError("it must be longer than nothing")
    return seconds


def positive_count(text: str) -> int:
    """A whole number above 0, for ``type=``."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def one_metrics_url(given: str) -> str:
    """The URL of one server's metrics; ``http://host:8000`` alone means its ``/metrics``.

    Raises `UsageError`, which never repeats a URL that cannot be used: it may hold a password.
    """
    try:
        parts = urlsplit(check_url(given, ("http", "https")))
    except ValueError as error:
        raise UsageError(str(error)) from None
    return urlunsplit(parts._replace(path="/metrics")) if parts.path in ("", "/") else given
