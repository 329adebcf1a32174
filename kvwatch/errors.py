"""Every exception kvwatch raises on purpose.

::

    KVWatchError
    ├── ScrapeError       a scrape gave no snapshots; carries a closed `FailureReason`
    ├── ConfigError       the configuration cannot be used; carries every error found, not the first
    ├── RecordingError    a recording cannot be read at all (single bad lines are skipped, not raised)
    ├── PrometheusError   a Prometheus gave no samples to replay
    └── UsageError        a command's arguments make no sense together
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line needs the errors at once and the model only when it has something to do
    from collections.abc import Sequence

    from kvwatch.model import FailureReason


class KVWatchError(Exception):
    """Base of all errors a user can cause or meet; its text is one line for a person."""


class ScrapeError(KVWatchError):
    """A scrape gave no snapshots."""

    def __init__(self, reason: FailureReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class ConfigError(KVWatchError):
    """The configuration cannot be used."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = tuple(errors)


class RecordingError(KVWatchError):
    """A recording cannot be read at all."""


class PrometheusError(KVWatchError):
    """A Prometheus gave no samples to replay."""


class UsageError(KVWatchError):
    """A command's arguments make no sense together."""
