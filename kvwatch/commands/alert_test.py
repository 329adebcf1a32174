"""``kvwatch alert-test``: sends a test alert, marked as one, to every configured Alertmanager, to see that it reaches a person.

It has the severity of a page unless told otherwise, so it takes the way of one: routes, receivers, pager. It resolves by itself.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any, Final

from pydantic_settings import CliSettingsSource

from kvwatch.alerts.definition import PROMETHEUS_PREFIX
from kvwatch.clock import SystemClock
from kvwatch.commands.arguments import positive_duration
from kvwatch.config.flags import add_flags
from kvwatch.config.sources import load
from kvwatch.errors import UsageError
from kvwatch.exporter.alertmanager.client import Outcome, Post, http_post
from kvwatch.exporter.alertmanager.notifications import Notification
from kvwatch.exporter.alertmanager.push import instance_of, own_labels, page_url_of
from kvwatch.exporter.web.access import Access
from kvwatch.model import Severity

DESCRIPTION: Final = (
    "Sends a test alert, marked as one, to every configured Alertmanager.\n"
    "It has the severity of a page unless told otherwise, so that it takes the way of one:\n"
    "routes, receivers, pager. It resolves by itself."
)

NAME: Final = f"{PROMETHEUS_PREFIX}AlertTest"
_RESENDS: Final = 4
"""An alert is valid for so many resends."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvwatch alert-test``."""
    parser.add_argument("--severity", choices=[str(one) for one in Severity], default=str(Severity.CRITICAL), help="default: %(default)s")
    parser.add_argument(
        "--for", dest="seconds", type=positive_duration, default=120.0, metavar="DURATION", help="how long it fires (default: 2m)"
    )
    parser.set_defaults(run=partial(run, add_flags(parser)))


def run(flags: CliSettingsSource[Any], arguments: argparse.Namespace) -> int:
    """Send it; exit code 0 when every Alertmanager took it, else 1. Raises `UsageError` where none is configured."""
    settings = load(arguments, flags)
    if not settings.alertmanager.urls:
        raise UsageError("no Alertmanager is configured: set alertmanager.urls, or give --alertmanager.urls=URL for this test")
    instance, now = instance_of(settings.web), SystemClock().unix()
    page_url = page_url_of(settings.alertmanager, instance, "http" if Access(settings.web).context() is None else "https")
    labels = own_labels(settings.alertmanager, instance) | {
        "alertname": NAME,
        "severity": arguments.severity,
        "target": "none: a test",
        "test": "true",
    }
    alert = Notification(
        labels=tuple(sorted(labels.items())),
        summary="A test of kvwatch's alerts. Nothing is wrong.",
        description=f"Somebody ran `kvwatch alert-test` on {instance}. Nothing to do; it resolves by itself.",
        starts_unix=now,
        confirmed_at=0.0,
    )
    body = alert.as_json(unix=now, resend=arguments.seconds / _RESENDS, page_url=page_url)
    sent, clock = json.dumps([body]).encode(), SystemClock()
    outcomes = [_send(url, sent, http_post(url, settings.alertmanager, clock)) for url in settings.alertmanager.urls]
    return 0 if all(outcomes) else 1


def _send(url: str, body: bytes, post: Post) -> bool:
    outcome, detail = post(body)
    print(f"{url}: {outcome}{f': {detail}' if detail else ''}")  # noqa: T201 - what the command is for
    return outcome is Outcome.ACCEPTED
