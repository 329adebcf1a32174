"""Servers that misbehave, each in its own way."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from pathlib import Path

BODY = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"


PATIENCE = 30.0
"""Seconds a peer waits for a client on a machine that is busy."""


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
                connection.settimeout(PATIENCE)
                self._answer(connection)

    def _answer(self, connection):
        if self._tls is None:
            self._converse(connection)
        else:
            with self._tls.wrap_socket(connection, server_side=True) as wrapped:
                self._converse(wrapped)

    def _converse(self, connection):
        if self._read_request:
            self.requests.append(whole_request(connection).decode("latin-1"))
        self._behave(connection, self.stopped)

    def close(self):
        self.stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def whole_request(connection):
    """Head and body, which may come one after the other: what is left unread at the end makes a reset that overtakes the answer."""
    request = b""
    while (piece := connection.recv(65536)) != b"":
        request += piece
        head, ended, body = request.partition(b"\r\n\r\n")
        length = re.search(rb"^content-length: *(\d+)", head, re.IGNORECASE | re.MULTILINE)
        if (ended and len(body) >= int(length[1] if length else 0)) or not request[:1].isalpha():  # a greeting of TLS is no request
            break
    return request


def answer(body=BODY, head=b"HTTP/1.1 200 OK", *headers):
    """A whole answer with its length."""
    lines = (head, *headers, b"Content-Length: %d" % len(body), b"", b"")
    return b"\r\n".join(lines) + body


def sends(*pieces):
    def behave(peer, _stopped):
        for piece in pieces:
            peer.sendall(piece)

    return behave


def drips(before, piece):
    """`before` at once, then `piece` again and again, each within any timeout of a single read."""

    def behave(peer, stopped):
        peer.sendall(before)
        while not stopped.wait(0.02):
            peer.sendall(piece)

    return behave


def is_silent(peer, stopped):
    """Until the client leaves."""
    peer.settimeout(0.05)
    while not stopped.is_set():
        with contextlib.suppress(TimeoutError):
            if not peer.recv(1):
                return


def resets(peer, _stopped):
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def sends_without_end(peer, stopped):
    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    piece = b"x" * 65536
    while not stopped.is_set():
        peer.sendall(piece)


def free_port() -> int:
    """A port nobody listens on, and nobody else gets while this process lives.

    It lies below those that the kernel gives to whoever binds port 0 or connects, and is reserved among test processes by a name.
    """
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(max(1024, ephemeral // 2), ephemeral)
    for place in range(len(ports)):
        port = ports[(place + os.getpid()) % len(ports)]
        with socket.socket(socket.AF_UNIX) as name, contextlib.suppress(OSError):  # somebody has the name, or the port
            name.bind(f"\0kvwatch-test-port-{port}")
            socket.create_server(("127.0.0.1", port)).close()
            name.detach()  # the name is held until the process ends
            return port
    raise AssertionError(f"no port is free among {ports}")
