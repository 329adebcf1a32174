"""Releases, release candidates, local and nightly builds against the release that brought something."""

from __future__ import annotations

import pytest

from kvwatch.capacity.versions import is_at_least, parse_version


@pytest.mark.parametrize(
    ("text", "minimum", "found"),
    [
        ("0.32.0", "0.24", True),
        ("0.24.0", "0.24", True),
        ("0.23.9", "0.24", False),
        ("0.9.1", "0.10", False),  # not as text
        ("v0.10.1.1", "0.10.1", True),
        ("0.32.0+cpu", "0.32", True),
        ("0.24.0rc1", "0.24", True),
        ("0.24.1.dev3+g1a2b3c4.cu129", "0.24", True),
        ("0.24.0.dev3+g1a2b3c4", "0.24", None),  # on the way there: it may know it or not
        ("0.19.2rc1.dev134+gfe9c3d6c5", "0.19", True),
        ("0.19.2rc1.dev134+gfe9c3d6c5", "0.24", False),
        ("0.1.dev1+g1a2b3c4", "0.9", None),  # a checkout without tags, of any age
        ("0.1.dev15000+g1a2b3c4.d20260101", "0.24", None),
        ("nightly", "0.9", None),
        ("dev", "0.9", None),
        ("", "0.9", None),
        (None, "0.9", None),
    ],
)
def test_a_version_is_compared_as_one_and_what_tells_none_is_unknown(text, minimum, found):
    assert is_at_least(text, minimum) is found


@pytest.mark.parametrize(
    ("text", "release"),
    [("0.10.1.1", (0, 10, 1, 1)), ("v0.9.2rc1", (0, 9, 2)), ("0.32.0+cpu", (0, 32, 0)), ("0.1.dev1+g1a2b3c4", None), ("nightly", None)],
)
def test_the_release_is_what_the_arithmetic_asks_for(text, release):
    assert parse_version(text) == release
