"""Label selectors as Prometheus writes them (``{pod="vllm-0",namespace=~"llm-.*"}``), to be merged into queries of our own."""

from __future__ import annotations

import re
from typing import Final

from kvwatch.errors import UsageError

_MATCHER: Final = re.compile(
    r"""\s*(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)\s*(?P<operator>=~|!~|!=|=)\s*(?P<value>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\s*(?:,|$)"""
)


def matchers(selector: str) -> str:
    """The matchers inside *selector*, braces or not, as they stand in a query: ``pod="vllm-0",…``. Raises `UsageError`."""
    text = selector.strip()
    inside = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    found, position = [], 0
    while position < len(inside.rstrip()):
        match = _MATCHER.match(inside, position)
        if match is None:
            raise UsageError(f"""--match {selector}: write '{{pod="vllm-0"}}'; matchers are NAME="VALUE" with =, !=, =~ or !~""")
        _check(selector, match["name"], match["operator"], match["value"])
        found.append(f"{match['name']}{match['operator']}{match['value']}")
        position = match.end()
    if not found:
        raise UsageError(f"--match {selector}: there is no matcher in it")
    return ",".join(found)


def _check(selector: str, name: str, operator: str, value: str) -> None:
    if name == "__name__":
        raise UsageError(f"--match {selector}: the names of the metrics are kvwatch's to choose")
    if operator in ("=~", "!~"):
        try:
            re.compile(value[1:-1].replace("\\\\", "\\"))
        except re.error as error:
            raise UsageError(f"--match {selector}: {value} is not a regular expression: {error}") from None
