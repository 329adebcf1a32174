"""What `requests` raises becomes a reason from the closed set, in words that hold nothing secret."""

from __future__ import annotations

import http.client
import ssl
import zlib
from collections.abc import Iterator
from typing import Final

from requests.exceptions import InvalidURL
from urllib3.exceptions import DecodeError, InvalidHeader, LocationValueError

from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason
from kvwatch.poller.exposition import excerpt

_REASONS: Final[tuple[tuple[type[BaseException], FailureReason], ...]] = (
    (ssl.SSLEOFError, FailureReason.RESET),
    (ssl.SSLError, FailureReason.TLS),
    (TimeoutError, FailureReason.TIMEOUT),
    (ConnectionError, FailureReason.RESET),  # http.client.RemoteDisconnected is one
    (http.client.IncompleteRead, FailureReason.RESET),
    (http.client.HTTPException, FailureReason.NOT_METRICS),
    (zlib.error, FailureReason.ENCODING),
    (InvalidHeader, FailureReason.NOT_METRICS),  # two lengths that differ
    (LocationValueError, FailureReason.DNS),  # a label that is empty or too long
    (InvalidURL, FailureReason.DNS),
    (UnicodeError, FailureReason.DNS),  # no IDNA
    (DecodeError, FailureReason.ENCODING),
)

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""How OpenSSL, by its version, says that the answer was no TLS: it read ``HTTP/`` as the head of a record."""
_TLS_RECORD: Final = "\x15\x03"
"""The head of a TLS alert, which a port that speaks https sends to a request in plain http."""

_CLOSED: Final = http.client.RemoteDisconnected
_MAYBE_TLS: Final = " (does this port speak https?)"
"""uvicorn, which vLLM runs in, closes a connection of plain http to its TLS port without a word."""


def failure(error: BaseException, deadline: float, scheme: str) -> ScrapeError:
    """The reason behind `error`: `requests` wraps what `urllib3` wraps what `http.client` or the socket said."""
    for cause in _causes(error):
        for kind, reason in _REASONS:
            if isinstance(cause, kind):
                return ScrapeError(
                    reason, _words(cause, reason, deadline) + (_MAYBE_TLS if scheme == "http" and isinstance(cause, _CLOSED) else "")
                )
    return ScrapeError(FailureReason.INTERNAL, f"the request could not be made: {type(error).__name__}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _words(cause: BaseException, reason: FailureReason, deadline: float) -> str:
    """One line for a person. Nothing of the request is in it, and of the answer no more than an excerpt."""
    match reason:
        case FailureReason.TIMEOUT:
            said = f"no whole answer within {deadline:g} s"
        case FailureReason.TLS if getattr(cause, "reason", None) in _NO_TLS:
            said = "this port speaks plain http, not https"
        case FailureReason.TLS:
            said = str(getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or "the handshake failed")
        case FailureReason.NOT_METRICS if str(cause).startswith(_TLS_RECORD):
            said = "this port speaks https, not plain http"
        case FailureReason.NOT_METRICS:
            said = f"the peer does not speak HTTP: {excerpt(str(cause))}"
        case FailureReason.DNS:
            said = "not a host name"
        case FailureReason.ENCODING:
            said = "the body cannot be unpacked"
        case _ if isinstance(cause, http.client.IncompleteRead):
            said = "the body ended before its announced length"
        case _:
            said = getattr(cause, "strerror", None) or "the peer closed the connection without an answer"
    return said
