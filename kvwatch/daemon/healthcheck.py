"""``python -m kvwatch.daemon.healthcheck``: asks the kvwatch of this container whether it is healthy. Exit code 0 or 1.

For Docker's HEALTHCHECK in an image without curl. It starts every half minute, so it imports the standard library only.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

TIMEOUT_SECONDS: Final = 4.0
_EVERYWHERE: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - listened on; asked through loopback


def health_url(environment: Mapping[str, str]) -> str:
    """Where kvwatch listens, as its environment says: ``KVWATCH_WEB__LISTEN_ADDRESS``, with TLS if ``KVWATCH_WEB__CERT_FILE`` is set."""
    host, _, port = environment.get("KVWATCH_WEB__LISTEN_ADDRESS", ":20058").rpartition(":")
    scheme = "https" if environment.get("KVWATCH_WEB__CERT_FILE") else "http"
    return f"{scheme}://{_EVERYWHERE.get(host, host)}:{port}/-/healthy"


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Ask ``argv[0]``, a URL, or where the environment says kvwatch listens; say what came back; 0 if it was 200.

    A configuration file or a flag that moves kvwatch elsewhere is not known here: then the URL must be given.
    """
    url = argv[0] if argv else health_url(environment)
    try:
        status, text = _get(url)
    except (OSError, http.client.HTTPException, ValueError) as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0 if status == HTTPStatus.OK else 1


def _get(url: str) -> tuple[int, str]:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("not an http or https URL")
    connection = _connection(parts.scheme, parts.hostname, parts.port)
    try:
        connection.request("GET", parts.path or "/", headers={"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read(200).decode(errors="replace").strip()
    finally:
        connection.close()


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    # The certificate names the host as others see it, and nothing is told to the peer: only whether it answers counts.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
