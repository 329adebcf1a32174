"""A short form of the fuzzing, from seeds that stay the same; the long one is ``python tests/fuzz/fuzz.py KIND COUNT``."""

from __future__ import annotations

import pytest
from fuzz import KINDS, findings


@pytest.mark.parametrize("kind", KINDS)
def test_no_input_breaks_a_border(kind):
    assert findings(kind, 60 if kind == "numbers" else 300) == []  # it plays minutes of an engine each time
