"""Waiting for SIGTERM, SIGINT and SIGHUP in a way that a frozen and thawed process cannot be misled by.

`signal.sigtimedwait` may return garbage or nothing at all after SIGSTOP and SIGCONT, a debugger or a paused machine. Here the
interpreter's own handler writes the number of each signal to a socket, and a wait is for that socket to be readable.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
from collections.abc import Iterator
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
"""What asks a process to end."""
_MOST_AT_ONCE: Final = 4096


class ProcessSignals:
    """Signals as they arrive, instead of what they do by default; made by the main thread, and a context manager to undo it."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._write.setblocking(False)  # noqa: FBT003
        self._came: set[int] = set()
        self._before_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # what was held back until now arrives

    def wait(self, seconds: float) -> signal.Signals | None:
        """The next of the signals, those that were named first before the others; ``None`` when none came within *seconds*.

        A signal that comes again before it was waited for is one.
        """
        if not self._came:
            select.select([self._read], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            while found := self._read.recv(_MOST_AT_ONCE):
                self._came.update(found)
        for number in self._before:
            if number in self._came:
                self._came.discard(number)
                return number
        self._came.clear()  # of others, that nobody waits for
        return None

    def _note(self, number: int, _frame: object) -> None:
        """The socket only wakes: thousands of signals fill it, and the last may be the one that ends the process."""
        self._came.add(number)

    def close(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        self._read.close()
        self._write.close()


@contextlib.contextmanager
def received(*numbers: signal.Signals) -> Iterator[ProcessSignals]:
    """`ProcessSignals` for as long as the block lasts."""
    signals = ProcessSignals(*numbers)
    try:
        yield signals
    finally:
        signals.close()
