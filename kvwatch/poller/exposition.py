"""Bytes become samples of the families somebody asked for.

The library's parser spends 10 ms on a vLLM body. So lines are selected by sample name first, and the label text of a selected line
is given to `prometheus_client.parser` once and remembered by the caller; only the number is read again at every scrape.
Lines nobody asked for are not looked at, so what is wrong with them does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason

Name = TypeVar("Name")

# Looked for in a text with a newline put before it: a literal to jump to is three times as fast as ``^``.
_LINE: Final = re.compile(r"\n[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)(.*)")
_LABELS: Final = r'\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}'
_REST: Final = re.compile(
    rf"(?P<labels>\s*{_LABELS}\s*|\s+)(?P<value>[^\s#]+)"  # what both formats have
    r"(?:\s+[-+0-9.eE]+)?"  # a timestamp
    r"(?:\s+#\s.*)?\s*",  # an OpenMetrics exemplar
)
_METADATA: Final = re.compile(r"^# (?:HELP|TYPE) ", re.MULTILINE)
_EXCERPT: Final = 120
_LONGEST_LINE: Final = 16384
"""Ten times the longest line vLLM writes. A longer one is refused unread: the library would take seconds over megabytes of labels."""


def decode(body: bytes) -> str:
    """The text of an exposition.

    Raises `ScrapeError`: ``EMPTY`` without a visible character, ``ENCODING`` when it is not UTF-8, ``NOT_METRICS`` for HTML, JSON or
    prose, ``PARSE`` when it stops within a line (every line of a whole exposition ends in a newline; the ``# EOF`` of OpenMetrics may not).
    """
    if not body or body.isspace():
        raise ScrapeError(FailureReason.EMPTY, "the body is empty")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ScrapeError(FailureReason.ENCODING, f"the body is not UTF-8 at byte {error.start}") from None
    start = text.lstrip()
    if start.startswith("<"):
        raise ScrapeError(FailureReason.NOT_METRICS, f"the body is HTML or XML: {excerpt(start)}")
    if start.startswith(("{", "[")):
        raise ScrapeError(FailureReason.NOT_METRICS, f"the body is JSON: {excerpt(start)}")
    if not _METADATA.search(text) and not any(_is_sample(rest) for _, rest in _lines(text)):
        raise ScrapeError(FailureReason.NOT_METRICS, f"the body has no line of metrics: {excerpt(start)}")
    if not text.endswith("\n") and not text.endswith("# EOF"):
        raise ScrapeError(FailureReason.PARSE, f"the body is cut off within its last line: {excerpt(text.rsplit(chr(10), 1)[-1])}")
    return text


def select(text: str, wanted: Callable[[str], Name | None]) -> Iterator[tuple[Name, str, float]]:
    """Each sample whose name `wanted` knows: what `wanted` said of it, its label text (``{…}`` or empty) and its value.

    Timestamps and exemplars are dropped, NaN and infinities are values. Raises `ScrapeError` (``PARSE``) at the first selected line
    that is not a sample. Label text is not validated here but by `parse_labels`.
    """
    before, known = "", None
    for name, rest in _lines(text):
        if name != before:  # the series of a family follow each other
            before, known = name, wanted(name)
        if known is None:
            continue
        if len(rest) > _LONGEST_LINE:
            raise ScrapeError(FailureReason.PARSE, f"a line of {len(rest)} characters: {excerpt(name + rest)}")
        labels, _, number = rest.rpartition(" ")
        if labels and (labels[-1] != "}" or " # " in labels):
            labels, number = _split(name, rest)
        try:
            value = parse_value(number)
        except ValueError:
            labels, number = _split(name, rest)
            value = _value_or_fault(name, rest, number)
        yield known, labels, value


def parse_value(text: str) -> float:
    """A sample value as Go and Python agree on it; raises `ValueError` for what only Python reads (``1_000``, digits of other scripts)."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def parse_labels(text: str) -> dict[str, str]:
    """The labels of ``{name="value",…}`` or of an empty text, read by the library; raises `ScrapeError` (``PARSE``).

    It costs 20 µs and the same text comes back at every scrape: remember the answer.
    """
    if not text:
        return {}
    try:
        samples = [sample for family in text_string_to_metric_families(f"x{text} 1\n") for sample in family.samples]
    except (ValueError, IndexError):
        samples = []
    if len(samples) != 1 or samples[0].value != 1 or samples[0].timestamp is not None:
        raise ScrapeError(FailureReason.PARSE, f"labels that cannot be parsed: {excerpt(text)}")
    return dict(samples[0].labels)


def family_names(text: str) -> set[str]:
    """The names of all samples and of all families that are declared, to say what a body is when it is not what was hoped for."""
    declared = re.findall(r"^# (?:HELP|TYPE) (\S+)", text, re.MULTILINE)
    return {*declared, *(name for name, _ in _lines(text))}


def excerpt(text: str) -> str:
    """The beginning of what a peer sent, on one line and printable."""
    return ascii(text[:_EXCERPT])


def _split(name: str, rest: str) -> tuple[str, str]:
    """Label text and value text of a line that has more to it than those two."""
    match = _REST.fullmatch(rest)
    if match is None:
        raise ScrapeError(FailureReason.PARSE, f"a line that cannot be parsed: {excerpt(name + rest)}")
    return match["labels"].strip(), match["value"]


def _value_or_fault(name: str, rest: str, number: str) -> float:
    try:
        return parse_value(number)
    except ValueError:
        raise ScrapeError(FailureReason.PARSE, f"a value that is no number: {excerpt(name + rest)}") from None


def _lines(text: str) -> list[tuple[str, str]]:
    """Name and rest of every line that is no comment."""
    return _LINE.findall(f"\n{text}")


def _is_sample(rest: str) -> bool:
    """Whether what follows a word makes a sample of it."""
    match = _REST.fullmatch(rest) if len(rest) <= _LONGEST_LINE else None
    if match is None:
        return False
    try:
        parse_value(match["value"])
    except ValueError:
        return False
    return True
