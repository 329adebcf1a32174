"""`requests` with one deadline for a whole exchange."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import requests
import requests.adapters
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3 import HTTPSConnectionPool

from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason
from kvwatch.transport.connection import BoundedHTTPConnection, BoundedHTTPSConnection, Deadline


class DeadlineAdapter(requests.adapters.HTTPAdapter):
    """Gives each connection its deadline, and TLS a context that is loaded once rather than for every poll."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        super().__init__(pool_connections=1, pool_maxsize=1)

    def get_connection_with_tls_context(
        self, request: requests.PreparedRequest, verify: bool | str | None, proxies: Any = None, cert: Any = None
    ) -> Any:
        """A pool whose connections have the deadline and, for https, the context that is loaded already."""
        pool = super().get_connection_with_tls_context(request, verify, proxies, cert)
        connection: Callable[..., object] = BoundedHTTPConnection
        if isinstance(pool, HTTPSConnectionPool):
            connection = BoundedHTTPSConnection
            pool.ca_certs = pool.ca_cert_dir = None  # the context has them
            pool.conn_kw["ssl_context"] = tls_context(Path(verify if isinstance(verify, str) else DEFAULT_CA_BUNDLE_PATH))
        cast("Any", pool).ConnectionCls = partial(connection, deadline=self._deadline)
        return pool

    def cert_verify(self, *_: Any, **__: Any) -> None:
        """Nothing: it would have the authorities loaded again for this connection."""


def tls_context(authorities: Path) -> ssl.SSLContext:
    """A client context that trusts `authorities` (a file or a directory), made anew when the file has changed."""
    try:
        return _tls_context(authorities, authorities.stat().st_mtime_ns)
    except OSError as error:  # ssl.SSLError is one
        raise ScrapeError(FailureReason.TLS, f"the CA file {authorities} cannot be used: {error.strerror or error}") from None


@lru_cache(maxsize=16)
def _tls_context(authorities: Path, _changed: int) -> ssl.SSLContext:
    if authorities.is_dir():
        return ssl.create_default_context(capath=str(authorities))
    return ssl.create_default_context(cafile=str(authorities))
