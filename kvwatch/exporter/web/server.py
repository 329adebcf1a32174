"""The socket side of the HTTP front: cheroot, made patient with clients that are silent or slow.

Out of the box cheroot gives every new connection a worker, which then waits for the request, and it does TLS handshakes on
the thread that accepts; a few silent clients, or a single one under TLS, keep everybody else waiting for a timeout. Here a
connection gets a worker only once its client has sent something, the handshake happens in that worker, and no request may
hold a worker longer than `REQUEST_SECONDS`.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from cheroot.server import HTTPConnection
from cheroot.ssl.builtin import BuiltinSSLAdapter
from cheroot.wsgi import Server as CherootServer

from kvwatch.errors import ConfigError

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

_log = structlog.get_logger(__name__)

WORKERS: Final = 8
REQUEST_SECONDS: Final = 10.0
"""How long one request may take from its first byte to the last byte of the answer."""
SWEEP_SECONDS: Final = 1.0
"""How exactly that is kept. One thread that looks now and then is cheaper than a timer for each request."""
IDLE_SECONDS: Final = 10
"""How long a connection may stay open without a request."""
_BACKLOG: Final = 128
_KEPT_CONNECTIONS: Final = 100
_MAX_HEADER_BYTES: Final = 16 * 1024
_MAX_BODY_BYTES: Final = 1024
_DRAIN_SECONDS: Final = 0.3
_STOP_SECONDS: Final = 1
_EXPIRY_SECONDS: Final = 0.25
"""How often idle connections are looked at; stopping takes up to this long."""


class _Connection(HTTPConnection):
    """A connection that gives its worker back in time."""

    waited = False
    """Whether it has been in the selector, that is whether its client has sent something."""
    shaken = False
    sweeps = 0
    """How often the server has found it busy with its present request."""
    server: _Server

    def communicate(self) -> bool:
        """Serve one request; true if the connection may be kept."""
        with self.server.busy(self):
            return self._shake_hands() and bool(super().communicate())  # type: ignore[no-untyped-call]  # cheroot's stubs lack it

    def _shake_hands(self) -> bool:
        """The TLS handshake, once; false for a client that does not get through it, who cannot be told so either."""
        if not self.shaken and isinstance(self.socket, ssl.SSLSocket):
            try:
                self.socket.do_handshake()
            except OSError:
                return False
        self.shaken = True
        return True

    def give_up(self) -> None:
        """End the connection while a worker is busy with it; the worker then finds it closed."""
        # Not self.socket.shutdown: an SSLSocket would drop its TLS state under the feet of the worker that is using it.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class _TLS(BuiltinSSLAdapter):
    """TLS 1.2 or later, with the handshake left to the first read, which a worker does."""

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        super().__init__(str(cert_file), str(key_file))
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        """Wrap without a word on the wire."""
        wrapped = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return wrapped, {"wsgi.url_scheme": "https", "HTTPS": "on"}


class _Server(CherootServer):
    ConnectionClass = _Connection
    keep_alive_conn_limit = _KEPT_CONNECTIONS
    expiration_interval = _EXPIRY_SECONDS
    max_request_header_size = _MAX_HEADER_BYTES
    max_request_body_size = _MAX_BODY_BYTES

    bind_error: OSError | None = None

    def __init__(self, address: tuple[str, int], app: WSGIApplication) -> None:
        super().__init__(
            address,
            app,
            numthreads=WORKERS,
            max=WORKERS,
            server_name="kvwatch",
            request_queue_size=_BACKLOG,
            timeout=IDLE_SECONDS,
            shutdown_timeout=_STOP_SECONDS,
        )
        self._busy: set[_Connection] = set()
        self._changed = threading.Condition()
        self._draining = threading.Event()

    @contextlib.contextmanager
    def busy(self, connection: _Connection) -> Iterator[None]:
        """Note that a worker is busy with the connection."""
        connection.sweeps = 0
        with self._changed:
            self._busy.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._busy.remove(connection)
                self._changed.notify_all()

    def sweep(self) -> None:
        """Until `drain`: every `SWEEP_SECONDS`, end the requests that have been found busy too often."""
        while not self._draining.wait(SWEEP_SECONDS):
            with self._changed:
                for connection in self._busy:
                    connection.sweeps += 1
                    if connection.sweeps * SWEEP_SECONDS > REQUEST_SECONDS:
                        connection.give_up()

    def drain(self) -> None:
        """Wait a moment for the running requests, then cut off what is left of them."""
        self._draining.set()
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, timeout=_DRAIN_SECONDS)
            for connection in self._busy:
                connection.give_up()

    def bind(self, family: int, type: int, proto: int = 0) -> socket.socket:  # noqa: A002 - cheroot's own name for it
        """Bind as cheroot does, and remember why not: its own message buries the reason."""
        try:
            bound: socket.socket = super().bind(family, type, proto)
        except OSError as error:
            self.bind_error = error
            raise
        return bound

    def process_conn(self, conn: _Connection) -> None:
        """Give a connection a worker, a new one only once there is something to read."""
        if conn.waited:
            super().process_conn(conn)
        else:
            conn.waited = True
            self.put_conn(conn)

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """Into our own log; a client that goes away or speaks nonsense is not worth more than debug."""
        _log.log(level if level >= logging.ERROR else logging.DEBUG, "http.server_error", detail=msg, exc_info=traceback)


class Server:
    """A running HTTP server: `url` where a person finds it, `port` as bound, `close` to stop it."""

    def __init__(self, server: _Server, scheme: str) -> None:
        self._server = server
        host, self.port = server.bind_addr[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - compared, not bound
        self.url = f"{scheme}://{shown}:{self.port}"
        self._threads = [
            threading.Thread(target=server.serve, name="http", daemon=True),
            threading.Thread(target=server.sweep, name="http-sweep", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop listening and give the port back; running requests get a moment to end."""
        self._server.drain()
        self._server.stop()
        for thread in self._threads:
            thread.join()


def serve(app: WSGIApplication, *, host: str, port: int, cert_file: Path | None = None, key_file: Path | None = None) -> Server:
    """Bind and serve in the background; port 0 takes a free one. With a certificate and its key it speaks TLS only.

    Raises `ConfigError` when the address cannot be bound or the certificate cannot be used.
    """
    server = _Server((host, port), app)
    if cert_file is not None and key_file is not None:
        try:
            server.ssl_adapter = _TLS(cert_file, key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError([f"web.cert_file {cert_file}, web.key_file {key_file}: {_reason(error)}"]) from error
    try:
        server.prepare()
    except OSError as error:
        raise ConfigError([f"web.listen_address {host}:{port}: {_reason(server.bind_error or error)}"]) from error
    return Server(server, "http" if server.ssl_adapter is None else "https")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
