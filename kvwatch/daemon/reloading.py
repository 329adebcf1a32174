"""Reading the configuration again while everything goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from kvwatch.config.settings import Settings
from kvwatch.errors import ConfigError

_log = structlog.get_logger(__name__)

_RESTART: Final = ("web", "alertmanager", "log")
"""Sections that are read once: a socket, a thread and a stream hang on them."""


class Reloadable(Protocol):
    """What a reload changes."""

    def reload(self, settings: Settings) -> tuple[str, ...]:
        """Go on by other settings; returns those that only a restart changes."""
        ...

    def reload_failed(self) -> None:
        """The settings could not be read again."""
        ...


def differing(before: Settings, after: Settings) -> tuple[str, ...]:
    """The settings that differ and that a reload does not change."""
    sections = [
        f"{section}.{name}"
        for section in _RESTART
        for name in type(getattr(before, section)).model_fields
        if getattr(getattr(before, section), name) != getattr(getattr(after, section), name)
    ]
    return (*sections, *(("poll.interval",) if before.poll.interval != after.poll.interval else ()))


class Reloading:
    """One reload at a time, whoever asks for it; *read* reads the settings from all their places and raises `ConfigError`."""

    def __init__(self, read: Callable[[], Settings]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self.daemon: Reloadable | None = None

    def __call__(self) -> Sequence[str]:
        """Reload; returns what is wrong, a line each, after which everything goes on as before."""
        with self._lock:
            if self.daemon is None:
                return ("kvwatch is still starting",)
            try:
                needs_restart = self.daemon.reload(self._read())
            except ConfigError as error:
                self.daemon.reload_failed()
                _log.error("config.not_reloaded", errors=list(error.errors))
                return error.errors
            _log.info("config.reloaded", needs_restart=list(needs_restart))
            return ()
