"""How settings are written: durations as in Prometheus, URLs, comma-separated lists and labels."""

from __future__ import annotations

import math
import re
from typing import Annotated, Final
from urllib.parse import urlsplit, urlunsplit

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

_LONGEST: Final = 7 * 86400.0
"""A week: a longer one is taken for a typing error."""
_MOST_SHARDS: Final = 100
"""Each target is weighed for every shard, at every look around."""
_ROOTS: Final = ("", "/v1")
"""Paths at which vLLM serves no metrics, and which are what its users have at hand."""
_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,99}")
TAKEN_LABELS: Final = frozenset(
    {
        "alert",
        "alertname",
        "cause",
        "engine",
        "instance",
        "job",
        "line",
        "model_name",
        "name",
        "priority",
        "quantile",
        "reason",
        "severity",
        "signal",
        "state",
        "target",
        "window",
    }
)
"""Labels kvwatch gives its own series and alerts, and the two that Prometheus gives kvwatch's."""
_COUNT: Final = re.compile(r"[0-9]{1,3}")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(value: object) -> float:
    """Seconds of a Prometheus duration such as ``15s``, ``1m30s`` or ``500ms``; a bare number is seconds.

    Raises `ValueError` naming what was written.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{value!r} is not a duration: write it as 15s, 1m30s or 500ms")
    if isinstance(value, int | float):
        return float(value)
    text = value.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write it as 15s, 1m30s or 500ms")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def comma_separated(value: object) -> object:
    """A string from the environment or a flag is a comma-separated list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _labels(value: object) -> object:
    """A string from the environment is a comma-separated list of ``name=value``."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError("labels are written as name=value,name=value")
    return {name.strip(): text.strip() for name, _, text in pairs}


def parse_shard(text: str) -> tuple[int, int]:
    """``i/n``, such as ``0/3``, as (i, n): the part of the targets that is watched here, counted from 0, and how many parts there are.

    Raises `ValueError` naming what was written.
    """
    index, slash, total = text.strip().partition("/")
    if not (slash and _COUNT.fullmatch(index) and _COUNT.fullmatch(total) and int(index) < int(total) <= _MOST_SHARDS):
        raise ValueError(f"{text!r} is not a shard: write i/n, counted from 0, such as 0/3 to 2/3; n is at most {_MOST_SHARDS}")
    return int(index), int(total)


def check_url(url: str, schemes: tuple[str, ...]) -> str:
    """The URL itself if kvwatch can use it; raises `ValueError` otherwise, which never shows a URL that may hold credentials."""
    if "@" in url:
        raise ValueError("credentials do not belong in a URL: use bearer_token_file or basic_auth")
    wanted = f"a URL must start with {' or '.join(s + '://' for s in schemes)} and name a host"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r}: {error}") from error
    if parts.scheme not in schemes or not parts.hostname or port == 0 or any(letter.isspace() for letter in url):
        raise ValueError(f"{url!r}: {wanted}")
    return url


def metrics_url(given: str, schemes: tuple[str, ...] = ("http", "https")) -> str:
    """The URL of one server's metrics as people write it: ``host:8000``, ``http://host:8000`` and the API's ``/v1`` all mean ``/metrics``.

    Any other path is kept. Raises `ValueError`, which never shows a URL that may hold credentials.
    """
    text = given.strip()
    if "://" not in text:
        text = f"http://{text}"
    parts = urlsplit(check_url(text, schemes))
    return urlunsplit(parts._replace(path="/metrics")) if parts.path.rstrip("/") in _ROOTS else text


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    """The labels of a target, if its series can carry them; raises `ValueError` naming the first that cannot be one."""
    for name in labels:
        if not _LABEL.fullmatch(name):
            raise ValueError(f"{name!r} is not a label name")
        if name in TAKEN_LABELS:
            raise ValueError(f"the label {name} is kvwatch's own or Prometheus'")
    return labels


PositiveDuration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=_LONGEST)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Labels = Annotated[dict[str, str], NoDecode, BeforeValidator(_labels)]
CommaSeparated = Annotated[list[str], NoDecode, BeforeValidator(comma_separated)]
