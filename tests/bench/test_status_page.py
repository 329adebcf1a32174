"""The status page of 300 targets, every scenario among them: its size and what drawing it costs."""

from __future__ import annotations

import gzip
import os
import statistics
import time

from scenes import page_named
from test_bench import noted

REQUESTS = 15


def test_the_page_of_300_targets(table):
    page, took = page_named("300-targets"), []
    for _ in range(REQUESTS):
        began = time.process_time()
        body = page.render("").body
        took.append(1000 * (time.process_time() - began))
    packed, milliseconds = len(gzip.compress(body)) / 1000, statistics.median(took)
    holds = [
        noted(table, "status page of 300 targets: packed", f"{packed:.1f} KB", "<= 30 KB", packed <= 30),
        noted(
            table,
            f"  processor time, median of {REQUESTS}, at a load of {os.getloadavg()[0]:.1f}",
            f"{milliseconds:.0f} ms",
            "<= 100 ms",
            milliseconds <= 100,
        ),
    ]
    assert all(holds)
