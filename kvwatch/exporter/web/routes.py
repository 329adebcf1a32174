"""What each URL answers: a WSGI application over views that are already there, so no request ever waits for vLLM.

`/` the status page, `/runbook`, `/metrics`, `/-/healthy`, `/-/ready`, `/api/v1/status`; 404 elsewhere, 405 for anything but GET and HEAD.
`kvwatch.exporter.web.server` puts it on a socket.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_log = structlog.get_logger(__name__)

NOTHING_ALLOWED: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SECURITY_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_TEXT: Final = "text/plain; charset=utf-8"
_WORTH_COMPRESSING: Final = 1024
_GZIP_LEVEL: Final = 1
"""Of 1..9: on a pod network time is dearer than the last few percent."""

_CHUNK: Final = 64 * 1024
"""Cheroot copies all that is left of a piece for every TLS record of 16 KiB; small pieces keep that linear."""


@dataclass(frozen=True, slots=True)
class Response:
    """A finished answer; the router adds length, security headers and compression."""

    status: str
    content_type: str
    body: bytes
    content_security_policy: str = NOTHING_ALLOWED


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from. None of these may block."""

    registry: CollectorRegistry
    page: Callable[[str], Response]
    """The status page for a query string."""
    status: Callable[[], bytes]
    """The JSON of ``/api/v1/status``."""
    runbook: Callable[[], Response]
    """The text of the alerts' links."""
    healthy: Callable[[], bool]
    """Whether the ticks still tick."""
    ready: Callable[[], bool]
    """Whether there is something to show: every target was polled once."""


def make_app(sources: Sources) -> WSGIApplication:
    """The WSGI application. An error in a source is logged and answered with 500; it never ends the server."""

    def metrics(environ: WSGIEnvironment) -> Response:
        encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        names = parse_qs(environ.get("QUERY_STRING", "")).get("name[]")
        registry = sources.registry.restricted_registry(names) if names else sources.registry
        return Response("200 OK", content_type, encode(registry))

    def page(environ: WSGIEnvironment) -> Response:
        return sources.page(environ.get("QUERY_STRING", ""))

    def healthy(_environ: WSGIEnvironment) -> Response:
        return _probe(good=sources.healthy(), yes="kvwatch is Healthy.", no="kvwatch is not healthy: the polls have stopped.")

    def ready(_environ: WSGIEnvironment) -> Response:
        return _probe(good=sources.ready(), yes="kvwatch is Ready.", no="kvwatch is not ready: not every target has been polled yet.")

    def status(_environ: WSGIEnvironment) -> Response:
        return Response("200 OK", "application/json", sources.status())

    routes = {
        "/": page,
        "/runbook": lambda _environ: sources.runbook(),
        "/metrics": metrics,
        "/-/healthy": healthy,
        "/-/ready": ready,
        "/api/v1/status": status,
    }

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        handler = routes.get(environ.get("PATH_INFO", ""))
        if handler is None:
            response = Response(
                "404 Not Found", _TEXT, b"Not found. There is /, /runbook, /metrics, /-/healthy, /-/ready and /api/v1/status.\n"
            )
        elif environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            response = Response("405 Method Not Allowed", _TEXT, b"kvwatch only answers GET and HEAD.\n")
        else:
            try:
                response = handler(environ)
            except Exception:  # noqa: BLE001 - whatever a source does, the other routes must go on answering
                _log.exception("http.request_failed", path=environ["PATH_INFO"])
                response = Response("500 Internal Server Error", _TEXT, b"kvwatch failed to answer; the reason is in its log.\n")
        return _send(response, environ, start_response)

    return app


def _probe(*, good: bool, yes: str, no: str) -> Response:
    return Response("200 OK" if good else "503 Service Unavailable", _TEXT, f"{yes if good else no}\n".encode())


def _send(response: Response, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    body = response.body
    headers = [
        ("Content-Type", response.content_type),
        ("Content-Security-Policy", response.content_security_policy),
        ("Vary", "Accept, Accept-Encoding"),
        *SECURITY_HEADERS,
    ]
    if response.status.startswith("405"):
        headers.append(("Allow", "GET, HEAD"))
    if len(body) >= _WORTH_COMPRESSING and gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
        body = gzip.compress(body, compresslevel=_GZIP_LEVEL)
        headers.append(("Content-Encoding", "gzip"))
    headers.append(("Content-Length", str(len(body))))
    start_response(response.status, headers)
    if environ["REQUEST_METHOD"] == "HEAD":
        return []
    return [body[start : start + _CHUNK] for start in range(0, len(body), _CHUNK)]
