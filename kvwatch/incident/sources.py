"""Where a replay's scrapes come from: a recording, or vLLM's own log, told apart by their first line."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from kvwatch.capacity.startup_log import read_startup_log
from kvwatch.config.policy import KnownConfig
from kvwatch.errors import RecordingError
from kvwatch.incident.recording import Entry, Reader
from kvwatch.incident.vllm_log import LogReader

STDIN: Final = Path("-")
_MAGIC: Final[dict[bytes, Callable[..., Any]]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ": lzma.open}
"""By the first bytes: logs are rotated under many names."""
_BROKEN: Final = (OSError, EOFError, lzma.LZMAError, zlib.error)


@dataclass(frozen=True, slots=True)
class EntrySource:
    """Scrapes in the order of time, of one target."""

    name: str
    target: str
    entries: Iterator[Entry]
    size: int
    position: Callable[[], int]
    """Bytes of `size` that were read so far."""
    known: KnownConfig
    """What the source itself says of the server's configuration."""


@contextmanager
def open_source(path: Path, complain: Callable[[str], None], *, now: float) -> Iterator[EntrySource]:
    """A recording or a log, ``-`` for standard input. Raises `RecordingError` in one line; *now* (unix) dates a log without years.

    Bad lines, and what a log cannot show, are handed to *complain*, one line each.
    """
    with ExitStack() as stack:
        if path == STDIN:
            path = stack.enter_context(_standard_input())
        if _is_recording(path):
            reader = stack.enter_context(Reader(path, complain))
            yield EntrySource(reader.name, reader.target, iter(reader), reader.size, reader.position, KnownConfig())
        else:
            yield stack.enter_context(_open_log(path, complain, now))


@contextmanager
def _standard_input() -> Iterator[Path]:
    """Standard input as a file, because a log is read twice: for what its start says, and for its stats lines."""
    with tempfile.NamedTemporaryFile(prefix="kvwatch-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(copy.name)


def _is_recording(path: Path) -> bool:
    try:
        with _text(path) as file:
            header = json.loads(file.readline(1 << 16))
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error
    except (*_BROKEN, ValueError, RecursionError):
        # A recording by its name is read as one, so that what is wrong with it is said.
        return path.name.removesuffix(".gz").removesuffix(".xz").endswith(".jsonl")
    return (isinstance(header, dict) and "kvwatch_recording" in header) or path.suffix == ".jsonl"


def _text(path: Path) -> IO[str]:
    """The text of a file, unpacked by its first bytes; bytes that are not UTF-8 are replaced."""
    with path.open("rb") as raw:
        start = raw.read(6)
    opener = next((found for magic, found in _MAGIC.items() if start.startswith(magic)), open)
    return io.TextIOWrapper(opener(path, "rb"), encoding="utf-8", errors="replace")


@contextmanager
def _open_log(path: Path, complain: Callable[[str], None], now: float) -> Iterator[EntrySource]:
    try:
        known = _known(path)
        reader = LogReader(_first_year(path, now))
        first = next(_entries(path, LogReader(reader.year)), None)
    except _BROKEN as error:
        raise RecordingError(f"{path}: cut short or damaged: {error}") from error
    if first is None:
        raise RecordingError(f"{path}: neither a kvwatch recording nor a vLLM log: it has no line with 'Avg prompt throughput'")
    complain(
        f"{path}: a log of vLLM shows its stats lines only: no latencies, no finished requests, and preemptions only where "
        "a line names them: an engine that preempts a little looks healthy in it"
    )
    yield EntrySource(path.name, path.name, _entries(path, reader), path.stat().st_size, lambda: 0, known)


def _known(path: Path) -> KnownConfig:
    """What the log's last start says, if the log begins that early."""
    with _text(path) as lines:
        try:
            return read_startup_log(lines).known
        except ValueError:
            return KnownConfig()


def _first_year(path: Path, now: float) -> int:
    """The year of vLLM's dates: the log was written by now, so a date later in the year than today is of last year."""
    today = datetime.fromtimestamp(now, UTC)
    with _text(path) as lines:
        entry = next(LogReader(today.year).entries(lines), None)
    return today.year if entry is None or entry.t <= now + 86400 else today.year - 1


def _entries(path: Path, reader: LogReader) -> Iterator[Entry]:
    with _text(path) as lines:
        yield from reader.entries(lines)
