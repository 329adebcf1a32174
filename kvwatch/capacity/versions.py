"""Which vLLM it is: what it counts and knows changed from release to release, and each change is asked for by its first release."""

from __future__ import annotations

from typing import Final

from packaging.version import InvalidVersion
from packaging.version import Version as Release

NEWEST: Final = (0, 34)
"""The release whose rules are taken where nobody says which vLLM it is."""
_UNTAGGED: Final = (0, 1)
"""What a build from a checkout without tags calls itself (``0.1.dev1+g1a2b3c4``), whatever it was built from."""

Version = tuple[int, ...]


def parse_version(text: str | None) -> Version | None:
    """``0.10.1.1``, ``v0.9.2rc1`` or ``0.32.0+cpu`` as something that can be compared; ``None`` where it tells no release."""
    found = _release(text)
    return None if found is None else found.release


def is_at_least(text: str | None, minimum: str) -> bool | None:
    """Whether the vLLM that calls itself *text* is the release *minimum* or later.

    ``None`` is not known: no version, a nightly build without one, or a build on the way to just that release.
    """
    found, wanted = _release(text), Release(minimum)
    if found is None or (found.is_devrelease and Release(found.base_version) == wanted):
        return None
    return Release(found.base_version) >= wanted


def _release(text: str | None) -> Release | None:
    try:
        found = Release((text or "").strip())
    except InvalidVersion:
        return None
    return None if found.is_devrelease and found.release[:2] == _UNTAGGED else found
