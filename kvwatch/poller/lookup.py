"""What discovery asks of whoever turns names into addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Lookup = Callable[[str], Sequence[str]]
"""Name -> its addresses now (none is an answer). Raises `LookupFailed` where nobody can say."""


class LookupFailed(Exception):  # noqa: N818 - it says what happened; it never leaves this module's callers
    """A name could not be resolved; the text is the reason."""
