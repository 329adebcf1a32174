"""The words and number formats of the status page: what people read where programs read enum members and floats."""

from __future__ import annotations

from typing import Final

ABSENT: Final = "\N{EN DASH}"
_THIN: Final = "\N{NARROW NO-BREAK SPACE}"
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_WHOLE_FROM: Final = 100
"""Numbers this large are shown without decimals."""


def number(value: float | None, digits: int = 1) -> str:
    """A count or rate with thousands set apart; decimals only where they say something."""
    if value is None:
        return ABSENT
    if value == int(value) or abs(value) >= _WHOLE_FROM:
        digits = 0
    return f"{value:,.{digits}f}".replace(",", _THIN)


def percent(ratio: float | None) -> str:
    """A ratio as a percentage; whole above 10 %."""
    if ratio is None:
        return ABSENT
    return f"{ratio:.0%}".replace("%", f"{_THIN}%") if ratio == 0 or ratio >= 0.1 else f"{ratio:.1%}".replace("%", f"{_THIN}%")  # noqa: PLR2004 - two digits


def seconds(value: float | None) -> str:
    """A latency: milliseconds below a second, seconds above."""
    if value is None:
        return ABSENT
    if value < 1:
        return f"{value * 1000:.3g}{_THIN}ms"
    return f"{value:.3g}{_THIN}s" if value < _WHOLE_FROM else f"{value:.0f}{_THIN}s"


def duration(value: float) -> str:
    """How long something has lasted, in the two largest units."""
    left = max(0, int(value))
    parts = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{_THIN}{unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or f"0{_THIN}s"
