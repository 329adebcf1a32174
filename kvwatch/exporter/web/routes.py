"""What each URL answers, from views that are already there, so no request ever waits for vLLM.

`/` the status page, `/runbook`, `/metrics`, `/-/healthy`, `/-/ready`, `/api/v1/status`, and `/-/reload` where that is enabled; 404
elsewhere, 405 for anything but GET and HEAD. `kvwatch.exporter.web.server` puts it on a socket.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

import structlog
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from kvwatch.exporter.web.messages import App, HttpAnswer, HttpRequest

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
_OPENMETRICS_END: Final = b"# EOF\n"
_GET: Final = ("GET", "HEAD")
_CHANGE: Final = ("POST", "PUT")


@dataclass(frozen=True, slots=True)
class Response:
    """A finished answer; the router adds length, security headers and compression."""

    status: int
    content_type: str
    body: bytes
    content_security_policy: str = NOTHING_ALLOWED
    packed: bool = False
    """`body` is in gzip's form already."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from. None of these may block."""

    registry: CollectorRegistry
    page: Callable[[str], Response]
    """The status page for a query string."""
    status: Callable[[], bytes]
    """The JSON of ``/api/v1/status``."""
    runbook: Callable[[], Response]
    """The text the alerts link to."""
    healthy: Callable[[], bool]
    """Whether the ticks still tick."""
    ready: Callable[[], bool]
    """Whether there is something to show: every target was polled once."""
    reload: Callable[[], Sequence[str]] | None = None
    """Read the configuration again and say what is wrong with it; ``None`` where that is not allowed over HTTP."""


def make_app(sources: Sources) -> App:
    """The application. An error in a source is logged and answered with 500; it never ends the server."""

    def app(request: HttpRequest) -> HttpAnswer:
        allowed, handler = _ROUTES.get(request.path, (_GET, _not_found))
        if request.method not in allowed and handler is not _not_found:
            response = Response(405, _TEXT, f"kvwatch only answers {' and '.join(allowed)} here.\n".encode())
        else:
            try:
                response = handler(sources, request)
            except Exception:  # noqa: BLE001 - whatever a source does, the other routes must go on answering
                _log.exception("http.request_failed", path=request.path)
                response = Response(500, _TEXT, b"kvwatch failed to answer; the reason is in its log.\n")
        return _finished(response, request, allowed)

    return app


def _not_found(_sources: Sources, _request: HttpRequest) -> Response:
    return Response(404, _TEXT, b"Not found. There is /, /runbook, /metrics, /-/healthy, /-/ready and /api/v1/status.\n")


def _page(sources: Sources, request: HttpRequest) -> Response:
    return sources.page(request.query)


def _metrics(sources: Sources, request: HttpRequest) -> Response:
    encode, content_type = _encoder(request.header("accept"))
    names = _queried(request.query, "name[]")
    pieces = _pieces(sources.registry.restricted_registry(names) if names else sources.registry, encode)
    if not gzip_accepted(request.header("accept-encoding")):
        return Response(200, content_type, b"".join(pieces))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=_GZIP_LEVEL, mtime=0) as file:
        for piece in pieces:
            file.write(piece)
    return Response(200, content_type, packed.getvalue(), packed=True)


def _healthy(sources: Sources, _request: HttpRequest) -> Response:
    return _probe(good=sources.healthy(), yes="kvwatch is Healthy.", no="kvwatch is not healthy: the polls have stopped.")


def _ready(sources: Sources, _request: HttpRequest) -> Response:
    return _probe(good=sources.ready(), yes="kvwatch is Ready.", no="kvwatch is not ready: not every target has been polled yet.")


def _status(sources: Sources, _request: HttpRequest) -> Response:
    return Response(200, "application/json", sources.status())


def _reload(sources: Sources, _request: HttpRequest) -> Response:
    if sources.reload is None:
        return Response(403, _TEXT, b"Reloading over HTTP is not enabled; see --web.enable-lifecycle. SIGHUP always reloads.\n")
    errors = sources.reload()
    if errors:
        return Response(500, _TEXT, "".join(f"kvwatch: {error}\n" for error in errors).encode("utf-8", "replace"))
    return Response(200, _TEXT, b"")


_ROUTES: Final[dict[str, tuple[tuple[str, ...], Callable[[Sources, HttpRequest], Response]]]] = {
    "/": (_GET, _page),
    "/runbook": (_GET, lambda sources, _request: sources.runbook()),
    "/metrics": (_GET, _metrics),
    "/-/healthy": (_GET, _healthy),
    "/-/ready": (_GET, _ready),
    "/api/v1/status": (_GET, _status),
    "/-/reload": (_CHANGE, _reload),
}
"""Path -> the methods it takes and what answers."""


def _encoder(accept: str) -> tuple[Callable[[Any], bytes], str]:
    """The format a client asks for; the plain text format for one whose wish cannot be understood."""
    try:
        return choose_encoder(accept)
    except Exception:  # noqa: BLE001 - the library reads a version with int(): a header from anybody is no fault of ours
        return choose_encoder("")


class _One(NamedTuple):
    """A registry of one family."""

    family: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.family,)


_PIECE: Final = 500
"""Samples encoded at a time."""


def _pieces(registry: Collector, encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    """The exposition, piece by piece: of a fleet, all samples at once would need five times the room of the text."""
    end = b""
    for family in registry.collect():
        samples, family.samples = family.samples, []
        head = encode(_One(family))
        if head.endswith(_OPENMETRICS_END):
            head, end = head[: -len(_OPENMETRICS_END)], _OPENMETRICS_END
        yield head
        for first in range(0, len(samples), _PIECE):
            family.samples = samples[first : first + _PIECE]
            yield encode(_One(family))[len(head) :].removesuffix(end)
    yield end


_MOST_FIELDS: Final = 1000
"""Of a query; one with more is read as empty."""


def _queried(query: str, name: str) -> list[str]:
    try:
        return parse_qs(query, max_num_fields=_MOST_FIELDS).get(name, [])
    except ValueError:
        return []


def _probe(*, good: bool, yes: str, no: str) -> Response:
    return Response(200 if good else 503, _TEXT, f"{yes if good else no}\n".encode())


_WORTH_COMPRESSING: Final = 1024
"""Bytes: a shorter body fits one packet anyway."""
_GZIP_LEVEL: Final = 1
"""Of 1..9: on a pod network time is dearer than the last few percent."""


def _finished(response: Response, request: HttpRequest, allowed: tuple[str, ...]) -> HttpAnswer:
    body = response.body
    headers = [
        ("Content-Type", response.content_type),
        ("Content-Security-Policy", response.content_security_policy),
        ("Vary", "Accept, Accept-Encoding"),
        *SECURITY_HEADERS,
    ]
    if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("Allow", ", ".join(allowed)))
    packed = response.packed
    if not packed and len(body) >= _WORTH_COMPRESSING and gzip_accepted(request.header("accept-encoding")):
        body, packed = gzip.compress(body, compresslevel=_GZIP_LEVEL), True
    if packed:
        headers.append(("Content-Encoding", "gzip"))
    headers.append(("Content-Length", str(len(body))))
    return HttpAnswer(response.status, tuple(headers), b"" if request.method == "HEAD" else body)
