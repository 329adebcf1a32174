"""Which vLLM a server says it is, at ``/version`` beside its ``/metrics``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

from kvwatch.errors import ScrapeError
from kvwatch.poller.fetch import Fetch

Start = Callable[[Callable[[], None]], None]
"""Runs a function while others go on."""


def server_version(url: str, fetch: Fetch) -> str | None:
    """The version the server of the metrics at *url* names; ``None`` where it names none."""
    parts = urlsplit(url)
    base = parts.path.rstrip("/").removesuffix("/metrics")
    try:
        answer = json.loads(fetch(urlunsplit((parts.scheme, parts.netloc, f"{base}/version", "", ""))))
    except (ScrapeError, ValueError):
        return None
    version = answer.get("version") if isinstance(answer, dict) else None
    return version if isinstance(version, str) and version[:1].isdigit() else None


def in_a_thread(work: Callable[[], None]) -> None:
    """Run *work* in a thread of its own, which keeps nobody from exiting."""
    threading.Thread(target=work, name="version", daemon=True).start()


class ServerVersion:
    """The version of one target, asked once for each process that is seen there, and never waited for."""

    def __init__(self, url: str, fetch: Fetch, start: Start = in_a_thread) -> None:
        self._url = url
        self._fetch = fetch
        self._start = start
        self._asked = False
        self._process: float | None = None
        self._found: tuple[float | None, str | None] = (None, None)

    def of(self, process: float | None) -> str | None:
        """As far as it is known, that of the process which started at *process* (Unix seconds; ``None`` where its page does not say)."""
        if not self._asked or process != self._process:
            self._asked, self._process = True, process
            self._start(lambda: self._ask(process))
        of_process, version = self._found
        return version if of_process == process else None

    def _ask(self, process: float | None) -> None:
        version = server_version(self._url, self._fetch)
        if process == self._process:
            self._found = (process, version)
