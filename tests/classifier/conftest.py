"""What the tests of the classifier share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def recordings() -> list[Path]:
    """Every recording of a server that counts: real ones, labelled."""
    return sorted(
        path for path in (Path(__file__).parent.parent / "data" / "recordings").glob("*.jsonl.xz") if path.name != "stats_disabled.jsonl.xz"
    )
