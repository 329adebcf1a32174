"""What was replayed, written as a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from kvwatch.errors import UsageError
from kvwatch.incident.recording import Entry, Writer


class Export:
    """A recording of the scrapes it is given; use as a context manager, which removes the file again when something goes wrong.

    Without a path it keeps nothing. Raises `UsageError` for a second target, and what `Writer` raises.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._writer: Writer | None = None
        self._target = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._writer is None or self._path is None:
            return
        try:
            self._writer.__exit__(kind, *rest)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise
        if kind is not None:
            self._path.unlink(missing_ok=True)

    def keep(self, target: str, entry: Entry) -> None:
        """Write one more scrape."""
        if self._path is None:
            return
        if self._writer is None:
            self._writer, self._target = Writer(self._path, target), target
        if target != self._target:
            raise UsageError(f"--export: a recording is of one target, and this is of {self._target} and {target}: choose one with --match")
        if entry.body is not None:
            self._writer.body(entry.t, entry.body.decode("utf-8"))
        else:
            self._writer.error(entry.t, entry.error or "")
