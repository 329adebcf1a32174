"""Basic authentication in front of the routes, with bcrypt hashes as the exporter-toolkit has them.

The probes stay open: an orchestrator cannot log in, and they say nothing but yes or no.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from kvwatch.exporter.web.messages import App, HttpAnswer, HttpRequest

_OPEN: Final = frozenset(("/-/healthy", "/-/ready"))
_TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")
_UNAUTHORIZED: Final = HttpAnswer(401, (_TEXT, ("WWW-Authenticate", 'Basic realm="kvwatch"'), ("Content-Length", "0")))
_BUSY: Final = HttpAnswer(429, (_TEXT, ("Retry-After", "1"), ("Content-Length", "0")))
_REMEMBERED: Final = 100
_NOBODY: Final = b"$2b$10$abcdefghijklmnopqrstuuJc3tMKCG.jV4jN3vX0bcyGbvVGh3CGK"
"""Compared with where there is no such user, so that the time says nothing about who there is."""


def with_login(app: App, users: Callable[[], Mapping[str, str]]) -> App:
    """*app* for those who can log in; for everybody while there are no users."""
    login = _Login(users)

    def guarded(request: HttpRequest) -> HttpAnswer:
        if request.path in _OPEN or not users():
            return app(request)
        known = login.knows(request.header("authorization"))
        if known is None:
            return _BUSY
        return app(request) if known else _UNAUTHORIZED

    return guarded


class _Login:
    """One password is hashed at a time: a flood of wrong ones costs one thread, and those who logged in before are remembered."""

    def __init__(self, users: Callable[[], Mapping[str, str]]) -> None:
        self._users = users
        self._hashing = threading.Lock()
        self._secret = os.urandom(32)
        self._good: dict[bytes, None] = {}

    def knows(self, header: str) -> bool | None:
        """Whether the header names a user and the password; ``None`` while somebody else's is being looked at."""
        user, password = _credentials(header)
        if user is None:
            return False
        hashed = self._users().get(user)
        key = hmac.digest(self._secret, b"\0".join((user.encode(), (hashed or "").encode(), password)), hashlib.sha256)
        if key in self._good:
            return True
        if not self._hashing.acquire(blocking=False):
            return None
        try:
            good = _matches(password, _NOBODY if hashed is None else hashed.encode()) and hashed is not None
        finally:
            self._hashing.release()
        if good:
            self._good[key] = None
            while len(self._good) > _REMEMBERED:
                self._good.pop(next(iter(self._good)), None)
        return good


def _credentials(header: str) -> tuple[str | None, bytes]:
    scheme, _, packed = header.partition(" ")
    if scheme.lower() != "basic":
        return None, b""
    try:
        user, colon, password = base64.b64decode(packed.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else (None, b"")
    except (binascii.Error, ValueError):
        return None, b""


@cache
def _bcrypt() -> Any:
    import bcrypt  # noqa: PLC0415 - few have users, and the others need not carry it

    return bcrypt


def _matches(password: bytes, hashed: bytes) -> bool:
    try:
        return bool(_bcrypt().checkpw(password, hashed))
    except ValueError:  # longer than bcrypt takes, or no hash
        return False
