"""What the socket side and the routes of the HTTP front say to one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request that has arrived whole."""

    method: str
    path: str
    query: str = ""
    """Behind the question mark, as it came."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""

    def header(self, name: str) -> str:
        """A header's value; empty without one."""
        return self.headers.get(name, "")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What goes back, headers complete but for those of the connection."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""


App = Callable[[HttpRequest], HttpAnswer]
"""Answers a request; called from several threads at once, and may take its time."""
