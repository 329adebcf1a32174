"""The flags of a command that reads what a Prometheus has scraped, and what they open."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvwatch.clock import SystemClock
from kvwatch.commands.arguments import unix_time
from kvwatch.errors import UsageError
from kvwatch.incident.prometheus import Prometheus
from kvwatch.incident.prometheus_api import PrometheusAccess, PrometheusApi
from kvwatch.incident.selectors import matchers

_DEFAULT_SPAN: Final = "1h"


@dataclass(frozen=True, slots=True)
class PrometheusRange:
    """A Prometheus, and of which time (unix seconds) it is asked."""

    source: Prometheus
    start: float
    end: float


def add_prometheus_arguments(parser: argparse.ArgumentParser) -> None:
    """Where it is, which time and which servers, and how it is asked."""
    group = parser.add_argument_group("a Prometheus that has scraped vLLM (or Thanos, Mimir, VictoriaMetrics), instead of a file")
    group.add_argument("--prometheus", metavar="URL", help="its address, with the path before /api/v1 if there is one")
    group.add_argument(
        "--start", metavar="TIME", help=f"RFC 3339 (UTC without an offset), unix seconds or so long ago (default: {_DEFAULT_SPAN})"
    )
    group.add_argument("--end", metavar="TIME", help="the same (default: now)")
    group.add_argument("--match", metavar="SELECTOR", help="""only series with these labels, such as '{pod="vllm-0"}'""")
    group.add_argument("--prometheus.bearer-token-file", dest="bearer_token_file", type=Path, metavar="FILE", help="holds the token")
    group.add_argument("--prometheus.username", dest="username", metavar="NAME", help="for basic authentication")
    group.add_argument("--prometheus.password-file", dest="password_file", type=Path, metavar="FILE", help="holds its password")
    group.add_argument("--prometheus.ca-file", dest="ca_file", type=Path, metavar="FILE", help="certificates to verify it with")
    group.add_argument(
        "--prometheus.header", dest="headers", action="append", default=[], metavar="'NAME: VALUE'", help="such as 'X-Scope-OrgID: team-a'"
    )


_NEED_PROMETHEUS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "start": "--start",
        "match": "--match",
        "end": "--end",
        "bearer_token_file": "--prometheus.bearer-token-file",
        "username": "--prometheus.username",
        "password_file": "--prometheus.password-file",
        "ca_file": "--prometheus.ca-file",
        "headers": "--prometheus.header",
    }
)
"""Arguments, and the flags they come from, that say nothing without a Prometheus."""


def prometheus_range(arguments: argparse.Namespace, complain: Callable[[str], None]) -> PrometheusRange | None:
    """What `add_prometheus_arguments` was given; ``None`` without ``--prometheus``. Raises `UsageError`, `PrometheusError`."""
    if not arguments.prometheus:
        given = [flag for name, flag in _NEED_PROMETHEUS.items() if getattr(arguments, name)]
        if given:
            raise UsageError(f"{' and '.join(given)} belong{'s' * (len(given) == 1)} to --prometheus")
        return None
    now = SystemClock().unix()
    start, end = unix_time("--start", arguments.start or _DEFAULT_SPAN, now), unix_time("--end", arguments.end or "0s", now)
    if start >= end:
        raise UsageError("--start must be before --end")
    if arguments.password_file is not None and arguments.username is None:
        raise UsageError("--prometheus.password-file needs --prometheus.username")
    if arguments.username is not None and arguments.bearer_token_file is not None:
        raise UsageError("give a bearer token or a user name, not both")
    access = PrometheusAccess(
        arguments.bearer_token_file, arguments.username, arguments.password_file, arguments.ca_file, _headers(arguments.headers)
    )
    match = matchers(arguments.match) if arguments.match is not None else ""
    return PrometheusRange(Prometheus(PrometheusApi(arguments.prometheus, access, complain), match), start, end)


def _headers(given: Sequence[str]) -> dict[str, str]:
    """Headers as a person writes them for curl. Raises `UsageError`, which does not quote a value."""
    found = {}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip():
            raise UsageError("--prometheus.header: write 'NAME: VALUE'")
        found[name.strip()] = value.strip()
    return found
