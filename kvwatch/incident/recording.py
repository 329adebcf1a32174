"""Recordings: raw scrapes as JSON lines, plain, gzip or xz by the name of the file.

First line ``{"kvwatch_recording": 1, "target": …}``, then one line a scrape: ``{"t": unix seconds, "body": "exposition
text"}`` or ``{"t": …, "error": "reason"}``.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

from kvwatch.errors import RecordingError

VERSION: Final = 1
_END_OF_TIME: Final = 2e11
"""Unix seconds beyond any clock, in a year that can still be written.

NaN and infinities, which Python's JSON lets pass, are not below it either.
"""
_OPENERS: Final[dict[str, Callable[..., Any]]] = {".gz": gzip.open, ".xz": lzma.open}
"""By suffix; anything else is plain."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded scrape: its time (unix seconds), and either the body or why there is none."""

    t: float
    body: bytes | None
    error: str | None


WRITTEN_AS: Final = (".jsonl", ".jsonl.gz", ".jsonl.xz")


def _open(path: Path, raw: IO[bytes]) -> IO[str]:
    """The text inside *raw*, unpacked by the suffix of *path*."""
    opener = _OPENERS.get(path.suffix)
    mode = raw.mode.replace("+", "")
    return io.TextIOWrapper(raw if opener is None else opener(raw, mode), encoding="utf-8", errors="surrogateescape", newline="\n")


class Reader:
    """A recording, read line by line; use as a context manager.

    Bad lines are handed to *complain* as ``FILE:LINE: what is wrong`` and skipped; a file that is no recording, that cannot be read
    or that ends in the middle of a line or of its compression raises `RecordingError` (what came before has been given out by then).
    """

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self.name = path.name
        self._path = path
        self._complain = complain
        try:
            self._raw = path.open("rb")
            self.size = path.stat().st_size
            self._file = _open(path, self._raw)
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror or error}") from error
        try:
            self.header = self._read_header()
        except RecordingError:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._raw.close()

    def position(self) -> int:
        """Bytes of the file read so far, of `size`: how far a long recording has come."""
        return self._raw.tell()

    @property
    def target(self) -> str:
        """What was recorded: the target's URL or name."""
        return str(self.header.get("target") or self._path.name)

    def __iter__(self) -> Iterator[Entry]:
        last: float | None = None
        for number, line in enumerate(self._lines(), start=2):
            if not line.strip():
                continue
            try:
                entry = _entry(line)
                if last is not None and entry.t < last:
                    raise ValueError(f"time goes back from {last} to {entry.t}")  # noqa: TRY301 - reported like the other errors of a line
            except ValueError as error:
                if not line.endswith("\n"):
                    raise RecordingError(f"{self._path}:{number}: cut short in the middle of a line") from error
                self._complain(f"{self._path}:{number}: {error}, skipped")
                continue
            last = entry.t
            yield entry

    def _lines(self) -> Iterator[str]:
        try:
            for line in self._file:  # noqa: UP028 - `yield from` would close the file together with a generator that was not finished
                yield line
        except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError) as error:
            raise RecordingError(f"{self._path}: cut short or damaged: {error}") from error

    def _read_header(self) -> dict[str, Any]:
        line = next(self._lines(), "")
        try:
            header = json.loads(line)
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict) or "kvwatch_recording" not in header:
            raise RecordingError(f'{self._path}: not a kvwatch recording: its first line is not {{"kvwatch_recording": {VERSION}, …}}')
        if header["kvwatch_recording"] != VERSION:
            raise RecordingError(f"{self._path}: recording version {header['kvwatch_recording']!r}; this kvwatch reads version {VERSION}")
        return header


def _entry(line: str) -> Entry:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as invalid:
        raise ValueError(f"not JSON ({invalid})") from invalid
    t = found.get("t") if isinstance(found, dict) else None
    if isinstance(t, bool) or not isinstance(t, int | float) or not 0 <= t < _END_OF_TIME:
        raise ValueError('no scrape: "t" (unix seconds) is missing')
    body, error = found.get("body"), found.get("error")
    if isinstance(body, str):
        try:
            return Entry(float(t), body.encode(), None)
        except UnicodeEncodeError as invalid:
            raise ValueError("not UTF-8") from invalid
    if isinstance(error, str):
        return Entry(float(t), None, error)
    raise ValueError('no scrape: neither "body" nor "error" is text')


class Writer:
    """Writes a recording; use as a context manager.

    Each scrape is flushed, so a crash loses at most one; only xz keeps its last blocks to itself until it is closed.
    Raises `RecordingError` when the file exists or cannot be written; what was flushed before stays, without a part of the next
    scrape, and a file of which nothing can be read is removed.
    """

    def __init__(self, path: Path, target: str) -> None:
        self._path = path
        if not path.name.endswith(WRITTEN_AS):
            raise RecordingError(f"{path}: a recording is written as .jsonl, .jsonl.gz or .jsonl.xz")
        try:
            self._raw = path.open("xb")
            self._file = _open(path, self._raw)
        except FileExistsError as error:
            raise RecordingError(f"{path}: exists already; kvwatch does not overwrite a recording") from error
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror or error}") from error
        self._whole = 0
        """Bytes of the file up to the end of the last scrape that was flushed."""
        self._write({"kvwatch_recording": VERSION, "target": target})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._raw.closed:  # it has been given up
            return
        try:
            with self._raw:
                self._file.close()
        except OSError as error:
            self._give_up()
            if kind is None:
                raise self._unwritable(error) from error

    def body(self, t: float, body: str) -> None:
        """Write a successful scrape made at *t* (unix seconds)."""
        self._write({"t": round(t, 3), "body": body})

    def error(self, t: float, reason: str) -> None:
        """Write a failed scrape."""
        self._write({"t": round(t, 3), "error": reason})

    def _write(self, record: dict[str, object]) -> None:
        try:
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
            self._file.flush()
            self._raw.flush()
            self._whole = self._raw.tell()
        except OSError as error:
            self._give_up()
            raise self._unwritable(error) from error

    def _give_up(self) -> None:
        """Close the file with no part of a scrape at its end; one of which nothing can be read is in the way of the next try."""
        for file in (self._file, self._raw):
            with contextlib.suppress(OSError):  # what it still holds cannot be written either
                file.close()
        os.truncate(self._path, self._whole)
        try:
            Reader(self._path, lambda _: None).__exit__()
        except RecordingError:
            self._path.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> RecordingError:
        return RecordingError(f"{self._path}: {error.strerror or error}")


class Decimator:
    """Chooses one scrape in *interval* seconds: the first at or after each tick, as a poller of that interval would have seen."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._due: float | None = None

    def wants(self, t: float) -> bool:
        """Whether the scrape at *t*, the next one in order, is one of them."""
        due = self._due
        if due is not None and t < due - 1e-3:
            return False
        self._due = t + self._interval if due is None or t - due > self._interval else due + self._interval
        return True
