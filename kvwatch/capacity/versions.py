"""Which vLLM is planned for: what it counts changed from release to release, and each change is asked for by its first release."""

from __future__ import annotations

import re
from typing import Final

NEWEST: Final = (0, 34)
"""The release whose rules are taken where nobody says which vLLM it is."""

Version = tuple[int, ...]


def parse_version(text: str | None) -> Version | None:
    """``0.10.1.1``, ``v0.9.2rc1`` or ``0.32.0+cpu`` as something that can be compared; ``None`` where it is no version."""
    found = re.match(r"v?(\d+(?:\.\d+)+)", (text or "").strip())
    return tuple(int(part) for part in found[1].split(".")) if found else None
