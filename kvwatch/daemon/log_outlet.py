"""Where log lines go: a queue in front of standard error, so that a disk that is full or a pipe nobody reads stops nothing.

A line that finds the queue full is dropped and counted. What was lost is said as soon as a line can be written again.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import Final

_MOST_LINES: Final = 1000
"""What a reader may be behind: some minutes of a large fleet in trouble."""
_LINE_BYTES: Final = 16 * 1024
"""A longer line is cut. Long values were already, by `kvwatch.daemon.logging`; this is for what other libraries may write."""


class LogOutlet:
    """What loggers write to instead of a stream: `write` never blocks and never fails. One thread writes to the descriptor *fd*."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.Queue[bytes] = queue.Queue(_MOST_LINES)
        self._lock = threading.Lock()
        self._unsaid = 0
        self.dropped = 0
        """Lines that could not be written."""
        threading.Thread(target=self._write_for_ever, name="log", daemon=True).start()

    def write(self, text: str) -> int:
        """Take in a line."""
        line = text.encode("utf-8", "backslashreplace")
        if len(line) > _LINE_BYTES:
            line = line[:_LINE_BYTES] + b"\n"
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._lost(1)
        return len(text)

    def flush(self) -> None:
        """Nothing: the thread writes as soon as it can, see `drain`."""

    def isatty(self) -> bool:
        """Whether a person looks at it."""
        return os.isatty(self._fd)

    def drain(self, seconds: float) -> None:
        """Wait until what was taken in is written, at most so long."""
        with self._queue.all_tasks_done:
            self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, seconds)

    def _write_for_ever(self) -> None:
        while True:
            if not self._written(self._queue.get()):
                self._lost(1)
            self._queue.task_done()

    def _written(self, line: bytes) -> bool:
        with self._lock:
            unsaid, self._unsaid = self._unsaid, 0
        try:
            if unsaid:
                self._put(f"kvwatch: {unsaid} log lines could not be written\n".encode())
            self._put(line)
        except OSError:
            with self._lock:
                self._unsaid += unsaid
            return False
        return True

    def _put(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]

    def _lost(self, lines: int) -> None:
        with self._lock:
            self._unsaid += lines
            self.dropped += lines
