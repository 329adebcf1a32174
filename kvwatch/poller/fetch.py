"""A URL becomes bytes: within one deadline, up to a size, and with a reason from a closed set when it does not.

Every fetch has a connection of its own: vLLM closes idle ones after 5 s, which is just when the next poll would use one. Nothing is
retried, the next poll is the retry; no redirect is followed; no proxy and no ~/.netrc is heeded unless asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol, cast

import requests
import requests.adapters
import requests.auth
import requests.utils
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from kvwatch import __version__
from kvwatch.clock import Clock
from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason
from kvwatch.poller.exposition import excerpt
from kvwatch.poller.failure import failure
from kvwatch.transport.adapter import DeadlineAdapter
from kvwatch.transport.connection import Deadline

Fetch = Callable[[str], bytes]
"""What the daemon needs: ``partial(fetch, deadline=…, max_bytes=…, clock=…)``, or a test's function."""

_HEADERS: Final = {
    # The plain text format by name: under OpenMetrics some versions spell vllm: as vllm_ and nobody needs exemplars.
    "Accept": "text/plain;version=0.0.4",
    "Accept-Encoding": "identity",
    "Connection": "close",
    "User-Agent": f"kvwatch/{__version__}",
}
_CHUNK: Final = 65536
_REDIRECTS: Final = range(300, 400)
_EXCERPT: Final = 200
_HINTS: Final = {
    400: "; some servers say so when a port that speaks https is asked in plain http",
    401: ": the server wants a token (bearer_token_file)",
    403: ": the token, if any, is not one that may read this",
    404: ": wrong path? vLLM serves its metrics at /metrics",
}
"""What a status usually means here."""
_GZIP_OR_ZLIB: Final = 47
"""``wbits`` of `zlib` that reads both headers."""


def fetch(
    url: str,
    *,
    deadline: float,
    max_bytes: int,
    clock: Clock,
    ca_file: Path | None = None,
    bearer_token_file: Path | None = None,
    trust_environment: bool = False,
) -> bytes:
    """The body of `url`, unpacked, at most `max_bytes` long, at most `deadline` seconds from now.

    `ca_file` replaces the usual authorities, the token is read anew each time, `trust_environment` heeds HTTP_PROXY and ~/.netrc.
    Raises `ScrapeError` and nothing else; its text never holds the token.
    """
    until = Deadline(clock, deadline)
    auth = _Bearer(_token(bearer_token_file)) if bearer_token_file is not None else None
    verify = True if ca_file is None else str(ca_file)
    with closing(DeadlineAdapter(until)) as adapter:
        try:
            request = _authorised(_prepared(url), auth)
            if trust_environment:
                response = _send_as_told_by_environment(request, adapter, deadline, verify)
            else:
                response = adapter.send(request, stream=True, timeout=deadline, verify=verify)
            with response:
                _check_status(response)
                return _read(cast("HTTPResponse", response.raw), max_bytes, until)
        except ScrapeError:
            raise
        except (requests.RequestException, HTTPError, OSError, ValueError, zlib.error) as error:
            raise failure(error, deadline, url.partition(":")[0].lower()) from None


@lru_cache(maxsize=1024)
def _prepared(url: str) -> requests.PreparedRequest:
    """The request for a URL, always the same: to prepare it costs a third of a fetch, and a session another part for what we refuse."""
    return requests.Request("GET", url, headers=_HEADERS).prepare()


def _authorised(request: requests.PreparedRequest, auth: _Bearer | None) -> requests.PreparedRequest:
    return request if auth is None else auth(request.copy())


def _send_as_told_by_environment(
    request: requests.PreparedRequest, adapter: DeadlineAdapter, deadline: float, verify: bool | str
) -> requests.Response:
    """Through HTTP_PROXY, with the credentials of ~/.netrc unless there are others."""
    with requests.Session() as session:
        settings = session.merge_environment_settings(request.url, {}, stream=True, verify=verify, cert=None)
    login = requests.utils.get_netrc_auth(request.url or "")
    if login is not None and "Authorization" not in request.headers:
        request = request.copy()
        request.prepare_auth(login)
    told = settings["verify"]
    return adapter.send(
        request,
        stream=True,
        timeout=deadline,
        verify=verify if told is None else told,
        proxies=cast("dict[str, str]", settings["proxies"]),
    )


class _Bearer(requests.auth.AuthBase):
    """Its presence also keeps ~/.netrc out."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ScrapeError(FailureReason.INTERNAL, f"bearer_token_file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable() or " " in token:
        raise ScrapeError(FailureReason.INTERNAL, f"bearer_token_file {path} does not hold one token")
    return token


def _check_status(response: requests.Response) -> None:
    status = response.status_code
    if status in _REDIRECTS:
        target = ascii(response.headers.get("Location", "nowhere")[:_EXCERPT])
        raise ScrapeError(FailureReason.REDIRECT, f"HTTP {status} to {target}; redirects are not followed, name the real URL")
    if status != HTTPStatus.OK:
        said = f"HTTP {status} {ascii((response.reason or '')[:_EXCERPT])[1:-1]}".rstrip()
        raise ScrapeError(FailureReason.HTTP_STATUS, f"{said}{_HINTS.get(status, '')}")


def _read(raw: HTTPResponse, max_bytes: int, deadline: Deadline) -> bytes:
    """The body, unpacked. Unpacking is done here with a limit, so that a small body cannot become a large memory."""
    too_large = ScrapeError(FailureReason.TOO_LARGE, f"the body is larger than {max_bytes} bytes")
    if (raw.length_remaining or 0) > max_bytes:
        raise too_large
    body = bytearray()
    packed = (raw.headers.get("Content-Encoding") or "identity").lower()
    unpack = _unpacker(packed)
    while chunk := raw.read1(_CHUNK, decode_content=False):
        if unpack is None:
            body += chunk
        while unpack is not None and chunk:
            if unpack.eof:  # RFC 1952: a body may be several members one after another
                unpack = _unpacker(packed)
                assert unpack is not None  # noqa: S101 - the same packing
            body += unpack.decompress(chunk, max_bytes + 1 - len(body))
            if len(body) > max_bytes:
                raise too_large
            chunk = unpack.unused_data
        if len(body) > max_bytes:
            raise too_large
        deadline.remaining()
    if unpack is not None and not unpack.eof:
        raise ScrapeError(FailureReason.RESET, f"the {packed} body is cut off")
    return bytes(body)


class _Unpacker(Protocol):
    """What `zlib.decompressobj` returns."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _unpacker(packed: str) -> _Unpacker | None:
    if packed == "identity":
        return None
    if packed in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(_GZIP_OR_ZLIB)
    raise ScrapeError(FailureReason.ENCODING, f"the body is packed as {excerpt(packed)}, which was not asked for")
