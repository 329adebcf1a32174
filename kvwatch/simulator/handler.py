"""How the simulated API server answers one connection, faults included."""

from __future__ import annotations

import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer, TCPServer
from typing import Final, Protocol

from kvwatch.simulator.faults import HttpFault

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
_PLAIN: Final = "text/plain; charset=utf-8"
_PAGE: Final = "<!DOCTYPE html><html><head><title>Sign in</title></head><body><h1>Sign in</h1></body></html>\n"
_LOOK_SECONDS: Final = 0.05


class Owner(Protocol):
    """What the handler needs of the server it belongs to."""

    slow_seconds: float

    @property
    def http_fault(self) -> HttpFault | None:
        """How ``/metrics`` fails at the moment."""
        ...

    @property
    def version(self) -> str:
        """What ``/version`` says."""
        ...

    def metrics(self) -> str:
        """The text of ``/metrics``; empty while the server is down."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait until the server is closed, at most that long; True when closed."""
        ...


class MetricsHandler(BaseHTTPRequestHandler):
    """Answers ``/metrics``, ``/health`` and ``/version`` and hangs up after each."""

    protocol_version = "HTTP/1.1"
    timeout = 5.0
    server_version = "uvicorn"
    sys_version = ""

    def __init__(self, owner: Owner, request: object, client_address: object, server: BaseServer) -> None:
        self._owner = owner
        super().__init__(request, client_address, server)  # type: ignore[arg-type]  # what the server passes through `partial`

    def do_GET(self) -> None:
        """Answer one request."""
        match self.path.partition("?")[0]:
            case "/metrics":
                self._metrics()
            case "/health":
                self._answer(HTTPStatus.OK, "", _PLAIN)
            case "/version":
                self._answer(HTTPStatus.OK, json.dumps({"version": self._owner.version}), "application/json")
            case _:
                self._answer(HTTPStatus.NOT_FOUND, '{"detail":"Not Found"}', "application/json")

    def _metrics(self) -> None:
        match self._owner.http_fault:
            case HttpFault.HANG:
                while self._owner.http_fault is HttpFault.HANG and not self._owner.wait(_LOOK_SECONDS):
                    pass
                self.close_connection = True
            case HttpFault.ERROR:
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal Server Error", _PLAIN)
            case HttpFault.HTML:
                self._answer(HTTPStatus.OK, _PAGE, "text/html; charset=utf-8")
            case HttpFault.TRUNCATED:
                self._exposition(share=0.5)
            case HttpFault.SLOW:
                self._owner.wait(self._owner.slow_seconds)
                self._exposition()
            case None:
                self._exposition()

    def _exposition(self, share: float = 1.0) -> None:
        text = self._owner.metrics()
        if text:
            self._answer(HTTPStatus.OK, text, CONTENT_TYPE, share=share)
        else:  # killed between accept and answer
            self.close_connection = True

    def _answer(self, status: HTTPStatus, text: str, content_type: str, share: float = 1.0) -> None:
        """Answer and hang up; a share below 1 hangs up in the middle of the body."""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body[: int(len(body) * share)])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        """Say nothing: the demo owns the terminal."""


class Front(ThreadingHTTPServer):
    """The standard library's server without its look-up of the host's name and its traceback for every client that hangs up."""

    def server_bind(self) -> None:
        """Bind only."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "vllm", self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are no error of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # passed on as it came
