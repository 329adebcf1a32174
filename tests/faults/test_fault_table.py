"""Every row of docs/faults.md names the tests that hold it, and they are there."""

from __future__ import annotations

import re


def test_every_row_names_tests_that_exist(repository):
    text = (repository / "docs" / "faults.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| fault")]
    assert len(rows) >= 26
    for row in rows:
        named = re.findall(r"`(tests/[^`]+)`", row)
        assert named, row
        assert [path for path in named if not (repository / path).exists()] == []
