"""Sizes of memory as people write them, and back."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
_UNITS: Final = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_MOST_GIB: Final = 4096
"""GiB: more than any GPU has, and than any model's weights are meant in."""
_LEAST_BYTES: Final = 2**20
_STEPS: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def parse_size(text: str) -> int:
    """Bytes of ``24GiB``, ``14.5 GB`` (10^9) or ``24Gi``. Raises `ValueError` naming what was written.

    A bare number is GiB where it is one a GPU can have, bytes where it is one of bytes, and refused in between.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found["unit"] and found["unit"].lower() not in _UNITS):
        raise ValueError(f"{text!r} is not a size: write it as 24GiB, 14.5GB or a number of GiB")
    number = float(found["number"])
    if found["unit"]:
        return round(number * _UNITS[found["unit"].lower()])
    if _MOST_GIB < number < _LEAST_BYTES:
        raise ValueError(f"{text!r} has no unit and may be MiB or bytes: write it as 24GiB or 14.5GB")
    return round(number * 2**30) if number <= _MOST_GIB else round(number)


def format_size(size: float) -> str:
    """Such as ``512 KiB``, ``2.00 GiB``, ``14.6 GiB``: three digits."""
    for step, unit in _STEPS:
        if abs(size) >= step:
            value = size / step
            whole = value == round(value) and unit != "GiB"
            return f"{value:.{0 if whole or value >= 100 else 1 if value >= 10 else 2}f} {unit}"  # noqa: PLR2004 - digits
    return f"{size:.0f} B"
