"""Peers that misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from kvwatch.clock import SystemClock


class Peer:
    """A TCP server on loopback; `behave` is given each connection after the request has been read, one after another."""

    def __init__(self, behave, *, tls=None, read_request=True):
        self.stopped = threading.Event()
        self.requests = []
        self._behave = behave
        self._tls = tls
        self._read_request = read_request
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def url(self):
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self.port}/metrics"

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection:
                connection.settimeout(5)
                self._answer(connection)

    def _answer(self, connection):
        if self._tls is None:
            self._converse(connection)
        else:
            with self._tls.wrap_socket(connection, server_side=True) as wrapped:
                self._converse(wrapped)

    def _converse(self, connection):
        if self._read_request:
            self.requests.append(connection.recv(65536).decode("latin-1"))
        self._behave(connection, self.stopped)

    def close(self):
        self.stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def peer():
    """Starts peers, stops them after the test."""
    with contextlib.ExitStack() as peers:

        def start(behave, **options):
            started = Peer(behave, **options)
            peers.callback(started.close)
            return started

        yield start


@pytest.fixture
def seconds():
    """Real seconds that a call took."""
    clock = SystemClock()

    def measure(call):
        begin = clock.monotonic()
        call()
        return clock.monotonic() - begin

    return measure
