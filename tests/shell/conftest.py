"""What the tests of the shell share."""

from __future__ import annotations

import pytest
import structlog


@pytest.fixture
def events():
    """Log events, as dictionaries, in order. For code that logs in the test's own thread."""
    with structlog.testing.capture_logs() as captured:
        yield captured
