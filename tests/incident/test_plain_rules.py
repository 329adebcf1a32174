"""The comparison with plain rules in ``docs/figures.md`` and in the README is what the recordings say."""

from __future__ import annotations

import plain_rules


def test_the_table_of_plain_rules_is_computed_from_the_recordings(repository):
    figures = (repository / "docs" / "figures.md").read_text(encoding="utf-8")
    table = figures.split("| rule | storms it pages for | engines it pages for without one |\n|---|---|---|\n")[1].split("\n\n")[0]
    assert table.splitlines() == plain_rules.table()
