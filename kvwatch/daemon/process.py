"""The daemon as a process: from its start to a signal that ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from kvwatch.clock import SystemClock
from kvwatch.config.settings import Settings
from kvwatch.daemon.daemon import Daemon
from kvwatch.daemon.log_outlet import LogOutlet
from kvwatch.daemon.reloading import Reloading
from kvwatch.errors import ConfigError
from kvwatch.exporter.web.access import Access
from kvwatch.poller.discovery import Discovery
from kvwatch.process_signals import STOPPING, received
from kvwatch.runs.drift import read_baseline

_log = structlog.get_logger(__name__)

_LONGEST_WAIT: Final = 60.0
_STOP_SECONDS: Final = 0.7
"""How long a signal waits for an orderly end."""
_DRAIN_SECONDS: Final = 0.2
"""How long the last log lines may take."""


def check(settings: Settings) -> None:
    """Look at what the settings name, as a start would. Raises `ConfigError` with everything that cannot be used."""
    errors: list[str] = []
    for attempt in (
        partial(Access, settings.web),
        partial(Discovery, settings.targets, settings.discovery),
        partial(read_baseline, settings.baseline),
    ):
        try:
            attempt()
        except ConfigError as error:
            errors += error.errors
    push = settings.alertmanager
    named = {
        "poll.ca_file": settings.poll.ca_file,
        "poll.bearer_token_file": settings.poll.bearer_token_file,
        "alertmanager.ca_file": push.ca_file,
        "alertmanager.bearer_token_file": push.bearer_token_file,
        "alertmanager.basic_auth.password_file": None if push.basic_auth is None else push.basic_auth.password_file,
    }
    for setting, path in named.items():
        if path is not None and not os.access(path, os.R_OK):
            errors.append(f"{setting} {path}: it cannot be read")
    if errors:
        raise ConfigError(errors)


def run(settings: Settings, outlet: LogOutlet, read_again: Callable[[], Settings]) -> int:
    """Run the daemon until SIGTERM or SIGINT; returns the exit code within a second, to be given to `leave`.

    SIGHUP has the settings *read_again*. Raises `ConfigError` when it cannot start.
    """
    reloading = Reloading(read_again)
    with received(*STOPPING, signal.SIGHUP) as signals:
        daemon = Daemon(settings, SystemClock(), reload=reloading, log_lines_dropped=lambda: outlet.dropped)
        try:
            daemon.start()
        except ConfigError:
            daemon.stop()
            raise
        reloading.daemon = daemon
        while (came := signals.wait(_LONGEST_WAIT)) not in STOPPING:
            if came is signal.SIGHUP:
                _reload(reloading)
        _log.info("kvwatch.stopping", signal=signal.Signals(came).name)
        _stop(daemon)
    return 0


def _reload(reloading: Reloading) -> None:
    try:
        reloading()
    except Exception:  # noqa: BLE001 - an error of ours ends neither the polls nor the wait for the signal that does
        _log.exception("config.reload_broke")


def _stop(daemon: Daemon) -> None:
    """In a thread, because a page being drawn may hold it up; `leave` then ends that with the process."""
    stopper = threading.Thread(target=daemon.stop, name="stop", daemon=True)
    try:
        stopper.start()
    except RuntimeError:  # no thread can be started: the process ends without ceremony
        return
    stopper.join(_STOP_SECONDS)


def leave(code: int, outlet: LogOutlet) -> None:
    """End the process at once: a poll under way in a worker thread would hold a normal exit until its deadline."""
    outlet.drain(_DRAIN_SECONDS)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)
