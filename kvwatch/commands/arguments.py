"""What several subcommands ask of argparse."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kvwatch.config.policy import KnownConfig
from kvwatch.config.values import metrics_url, parse_duration
from kvwatch.errors import UsageError
from kvwatch.plan.sources import read_log

_UNIX: Final = 1e8
"""A bare number above is unix seconds (since 1973), one below a duration in seconds (up to three years)."""


def duration(text: str) -> float:
    """Seconds of a duration such as ``5s`` or ``1m30s``, for ``type=``."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive_duration(text: str) -> float:
    """The same, above 0."""
    seconds = duration(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError("it must be longer than nothing")
    return seconds


def positive_count(text: str) -> int:
    """A whole number above 0, for ``type=``."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def one_metrics_url(given: str) -> str:
    """The URL of one server's metrics. Raises `UsageError`, which never repeats a URL that cannot be used: it may hold a password."""
    try:
        return metrics_url(given)
    except ValueError as error:
        raise UsageError(str(error)) from None


def unix_time(flag: str, text: str, now: float) -> float:
    """Unix seconds of a time as a person writes it. Raises `UsageError`."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        pass
    else:
        return seconds if seconds >= _UNIX else now - seconds
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{flag} {text!r}: write 2026-01-31T12:00:00Z, unix seconds, or 2h for two hours ago") from error


def add_known_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags for what ``/metrics`` does not say; `known_arguments` reads them."""
    known = parser.add_argument_group("what /metrics does not say, and you know")
    known.add_argument("--log", type=Path, metavar="FILE", help="the server's startup log, which knows most of the following")
    known.add_argument("--max-num-seqs", type=positive_count, metavar="N")
    known.add_argument("--max-num-batched-tokens", type=positive_count, metavar="N")
    known.add_argument("--max-model-len", type=positive_count, metavar="N")
    known.add_argument("--kv-cache-tokens", type=positive_count, metavar="N")
    known.add_argument("--vllm-version", metavar="VERSION", help="default: asked at /version")


def known_arguments(args: argparse.Namespace, configured: KnownConfig) -> KnownConfig:
    """What the flags say, over what the log says, over what is configured."""
    flags = KnownConfig(**{name: getattr(args, name) for name in KnownConfig.model_fields})
    logged = read_log(args.log).known if args.log is not None else KnownConfig()
    return KnownConfig.first_of(flags, logged, configured)


def write_whole(path: Path, document: str) -> None:
    """Write all of it or nothing, for a file that was cut off would be taken for a whole one. Raises `UsageError`."""
    unfinished = path.with_name(path.name + ".part")
    try:
        unfinished.write_text(document, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
