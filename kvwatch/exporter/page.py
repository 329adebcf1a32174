"""The status page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvwatch import __version__
from kvwatch.clock import Clock
from kvwatch.exporter.http import Response
from kvwatch.model import TargetView


class StatusPage:
    """Renders the page for a query string."""

    def __init__(self, views: Callable[[], Sequence[TargetView]], clock: Clock) -> None:
        self._views = views
        self._clock = clock

    def render(self, _query: str) -> Response:
        """The page."""
        links = "<p><a href=/metrics>/metrics</a> <a href=/api/v1/status>/api/v1/status</a>"
        html = f"<!doctype html><html lang=en><title>kvwatch</title><h1>kvwatch {__version__}</h1>{links}"
        return Response("200 OK", "text/html; charset=utf-8", html.encode())
