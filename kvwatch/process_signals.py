"""Waiting for SIGTERM, SIGINT and SIGHUP in a way that a frozen and thawed process cannot be misled by.

`signal.sigtimedwait` may return garbage or nothing at all after SIGSTOP and SIGCONT, a debugger or a paused machine. Here the
interpreter's own handler writes the number of each signal to a socket, and a wait is a read of that socket.
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


class ProcessSignals:
    """Signals as they arrive, instead of what they do by default; made by the main thread, and a context manager to undo it."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._write.setblocking(False)  # noqa: FBT003
        self._before_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _nothing) for number in numbers}

    def wait(self, seconds: float) -> signal.Signals | None:
        """The next of the signals, or ``None`` when none came within *seconds*."""
        readable, _, _ = select.select([self._read], [], [], max(0.0, seconds))
        if not readable:
            return None
        with contextlib.suppress(BlockingIOError):
            for number in self._read.recv(1):
                if number in self._before:
                    return signal.Signals(number)
        return None

    def close(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
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


def _nothing(_number: int, _frame: object) -> None:
    """What a signal does while it is waited for: the wakeup socket has its number already."""
