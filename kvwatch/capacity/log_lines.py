"""A line of a log as its program wrote it, without what carried it: colours, and the JSON of docker, journald and log shippers. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

_COLOURS: Final = re.compile(r"(?:\x1b|\\u001b)\[[0-9;]*[A-Za-z]")
_RFC3339: Final = re.compile(r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)")
_FIRST_UNIX, _LAST_UNIX = 1e9, 1e10
"""Unix seconds of the years 2001 to 2286; a thousand times as much are milliseconds, and so on."""
_FRACTIONS: Final = (1.0, 1e3, 1e6, 1e9)


def unwrapped(raw: str) -> tuple[str, datetime | None]:
    """The line itself, and when it was written as far as a JSON around it says so."""
    if not raw.lstrip().startswith("{"):
        return _COLOURS.sub("", raw), None
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return _COLOURS.sub("", raw), None
    texts = [value for value in found.values() if isinstance(value, str)] if isinstance(found, Mapping) else []
    if not texts:
        return _COLOURS.sub("", raw), None
    line = max(texts, key=len)
    return _COLOURS.sub("", line), next(_times(found, line), None)


def written_at(text: str) -> datetime | None:
    """The first RFC 3339 time in *text*; UTC where it names no zone."""
    found = _RFC3339.search(text)
    if found is None:
        return None
    try:
        at = datetime.fromisoformat(found["time"].replace(",", "."))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _times(found: Mapping[str, Any], line: str) -> Iterator[datetime]:
    for value in found.values():
        if value is line or isinstance(value, bool):
            continue
        if isinstance(value, str) and (at := written_at(value)) is not None:
            yield at
        elif (unix := _unix(value)) is not None:
            yield datetime.fromtimestamp(unix, UTC)


def _unix(value: Any) -> float | None:
    """Unix seconds, of a number in seconds, milli-, micro- or nanoseconds, or of its digits."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return next((number / unit for unit in _FRACTIONS if _FIRST_UNIX <= number / unit < _LAST_UNIX), None)
