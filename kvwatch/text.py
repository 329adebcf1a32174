"""How numbers, times and errors are written for people: the same in evidence, advice, tables and logs. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def number(value: float) -> str:
    """A count for a person: thousands apart, one decimal only below ten where it says something."""
    if abs(value) < 10 and round(value, 1) != round(value):  # noqa: PLR2004 - the usual place to stop counting decimals
        return f"{value:.1f}"
    return f"{value:,.0f}".replace(",", " ")


def counted(value: float, noun: str) -> str:
    """``1 preemption``, ``12 requests``; *noun* takes an s."""
    shown = number(value)
    return f"{shown} {noun}" if shown == "1" else f"{shown} {noun}s"


def percent(ratio: float) -> str:
    """A ratio for a person: ``0.953`` is ``95 %``, ``0.013`` is ``1.3 %``."""
    return f"{ratio * 100:.1f} %" if 0 < ratio < 0.1 else f"{ratio * 100:.0f} %"  # noqa: PLR2004 - below ten per cent a decimal counts


def one_line(error: object) -> str:
    """The text of an error without its line breaks, and without what a terminal would obey."""
    return printable(" ".join(str(error).split()))


def printable(text: str) -> str:
    """Text of others as a terminal may show it: what is not printable (escapes, controls, marks of direction) as Python writes it."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def rfc3339(unix: float) -> str:
    """A unix time in UTC with milliseconds and ``Z``."""
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
