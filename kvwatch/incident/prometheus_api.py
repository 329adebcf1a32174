"""One question to the query API of a Prometheus, or of what answers like one: Thanos, Mimir, VictoriaMetrics.

The same HTTP policy as everywhere in kvwatch: one deadline, no redirects, no proxy and no ~/.netrc from the environment, and no
secret in a message.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import requests
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from kvwatch import __version__
from kvwatch.clock import Clock, SystemClock
from kvwatch.errors import PrometheusError, ScrapeError
from kvwatch.poller.failure import failure
from kvwatch.text import printable
from kvwatch.transport.adapter import DeadlineAdapter
from kvwatch.transport.connection import Deadline

_SECONDS: Final = 120.0
"""For one answer, from the name lookup to the last byte: Prometheus' own default for a query."""
_LONGEST: Final = 300
_MAX_BYTES: Final = 512 * 1024 * 1024
"""A larger answer is refused: some tens of times what ten minutes of a hundred engines scraped every second come to."""
_PATH: Final = "/api/v1/query"


def _nothing(_: str) -> None:
    """Drop the complaint."""


@dataclass(frozen=True, slots=True)
class PrometheusAccess:
    """How a Prometheus is asked: who asks, with which certificates and headers (``X-Scope-OrgID`` names Mimir's tenant)."""

    bearer_token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def as_headers(self) -> dict[str, str]:
        """All headers of a request. Raises `PrometheusError` without quoting what a file holds."""
        found = {"Accept": "application/json", "User-Agent": f"kvwatch/{__version__}", **self.headers}
        if self.bearer_token_file is not None:
            found["Authorization"] = f"Bearer {_secret(self.bearer_token_file)}"
        elif self.username is not None:
            password = "" if self.password_file is None else _secret(self.password_file)
            found["Authorization"] = f"Basic {b64encode(f'{self.username}:{password}'.encode()).decode()}"
        return found


class PrometheusApi:
    """Asks instant queries of the Prometheus at *url*. What an answer warns of is handed to *complain*, each warning once."""

    def __init__(self, url: str, access: PrometheusAccess, complain: Callable[[str], None] = _nothing, clock: Clock | None = None) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise PrometheusError(f"{printable(url.rpartition('@')[2])}: a Prometheus URL starts with http:// or https:// and names a host")
        self.shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._url = url.rstrip("/").removesuffix(_PATH) + _PATH
        self._access = access
        self._clock = clock or SystemClock()
        self._complain = complain
        self._warned: set[str] = set()

    def query(self, query: str, at: float) -> list[dict[str, Any]]:
        """The series of an instant query at *at* (unix seconds), each with its ``metric``. Raises `PrometheusError`."""
        status, body = self._ask({"query": query, "time": f"{at:.3f}"})
        try:
            answer = json.loads(body)
            if answer["status"] == "success":
                series = _series(answer["data"])
            else:
                raise self._error(str(answer["error"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._error(_no_answer(status, body)) from None
        self._warn(answer)
        return series

    def _warn(self, answer: Mapping[str, Any]) -> None:
        """Warnings of Prometheus and Thanos, and VictoriaMetrics' ``isPartial``: some of the data is missing from the answer."""
        said = answer.get("warnings")
        warnings = [_short(str(one)) for one in said] if isinstance(said, list) else []
        if answer.get("isPartial") is True:
            warnings.append("the answer is partial: not every storage node answered")
        for warning in warnings:
            self.complain(warning)

    def complain(self, warning: str) -> None:
        """Say it, once."""
        if warning not in self._warned:
            self._warned.add(warning)
            self._complain(f"{self.shown}: {warning}")

    def _ask(self, form: Mapping[str, str]) -> tuple[int, bytes]:
        until = Deadline(self._clock, _SECONDS)
        try:
            with requests.Session() as session:
                session.trust_env = False
                session.headers.update(self._access.as_headers())
                session.verify = True if self._access.ca_file is None else str(self._access.ca_file)
                for scheme in ("http://", "https://"):
                    session.mount(scheme, DeadlineAdapter(until))
                with session.post(self._url, data=form, timeout=_SECONDS, allow_redirects=False, stream=True) as response:
                    return response.status_code, _read(cast("HTTPResponse", response.raw), until)
        except ScrapeError as error:
            raise self._error(error.detail) from None
        except requests.exceptions.InvalidHeader:
            # Its text quotes the header, which may be the token.
            raise self._error("a header or token cannot be sent: it holds characters that no header may hold") from None
        except (requests.RequestException, HTTPError, OSError, UnicodeError) as error:
            raise self._error(failure(error, _SECONDS, urlsplit(self._url).scheme).detail) from None

    def _error(self, what: str) -> PrometheusError:
        return PrometheusError(f"{self.shown}: {_short(what)}")


def _series(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The result, where it has the shape of a vector or a matrix. Raises what a wrong shape raises."""
    found: list[dict[str, Any]] = data["result"]
    for series in found:
        if not isinstance(series["metric"], dict):
            raise TypeError
        for t, value in series.get("values", ()):
            float(t), float(value)
    return found


def _read(raw: HTTPResponse, until: Deadline) -> bytes:
    body = bytearray()
    while chunk := raw.read(1 << 16, decode_content=True):
        body += chunk
        if len(body) > _MAX_BYTES:
            raise PrometheusError("the answer is too large: ask for a shorter time, or for fewer servers with --match")
        until.remaining()
    return bytes(body)


def _no_answer(status: int, body: bytes) -> str:
    """What came instead: some proxies and Mimir say why in a line of plain text."""
    text = body[: 4 * _LONGEST].decode("utf-8", "replace").strip()
    plain = status != HTTPStatus.OK and text and not text.startswith(("<", "{", "["))
    return f"HTTP status {status}: {text.splitlines()[0]}" if plain else f"HTTP status {status}, and no answer of a Prometheus"


def _secret(path: Path) -> str:
    try:
        found = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise PrometheusError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        found = ""
    if not found or not found.isprintable():
        raise PrometheusError(f"{path}: it does not hold one token or password")
    return found


def _short(said: str) -> str:
    return printable(" ".join(said.split()))[:_LONGEST]
