"""Which log belongs to which recording, and which of its lines are compared; the comparison itself: ``tests/incident/logs_beside.py``."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from logs_beside import Pair, belongs, beside, pairs, rows_of_file
from recordings_made import body, write

START = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
LINE = (
    "INFO 01-31 12:{:02d}:{:02d} [loggers.py:1] Engine 000: Avg prompt throughput: 200.0 tokens/s, Avg generation throughput: 300.0 "
    "tokens/s, Running: {} reqs, Waiting: 0 reqs, GPU KV cache usage: 40.0%"
)


@pytest.fixture
def recording(tmp_path):
    return write(tmp_path / "beside.jsonl", *((START + at, body(at, running=4.0)) for at in range(0, 121, 5)))


def log(tmp_path, running):
    path = tmp_path / f"running{running}.log"
    path.write_text("".join(LINE.format(second // 60, second % 60, running) + "\n" for second in range(0, 130, 10)))
    return path


def test_a_log_with_the_same_gauges_belongs_to_the_recording_and_says_the_same(tmp_path, recording):
    (pair,) = pairs([recording, log(tmp_path, 4), log(tmp_path, 9)])
    assert (pair.recording, pair.log) == ("beside", "running4")
    # From 12:01:00 on: a minute of the recording is warming up, and the same has to hold for half a minute.
    assert pair.lines >= 6
    assert pair.same_state == pair.lines


def test_lines_outside_the_recording_or_soon_after_a_change_are_not_compared(tmp_path, recording):
    recorded, _ = rows_of_file(recording)
    logged, _ = rows_of_file(log(tmp_path, 4))
    assert belongs(recorded, logged)
    pair = Pair("", "")
    beside(recorded[:5], logged, pair)
    assert pair.lines == 0
