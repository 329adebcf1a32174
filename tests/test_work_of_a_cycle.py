"""What a poll costs, counted and not timed: lines of Python that run, the same on any machine however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvwatch.assess import judge_for
from kvwatch.clock import SystemClock
from kvwatch.config.settings import Settings
from kvwatch.exporter.metrics.collector import ViewCollector
from kvwatch.incident.recording import Reader
from kvwatch.model import State, TargetView
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.vllm import parse_scrape

RECORDING: Final = Path(__file__).parent / "data" / "recordings" / "kv_storm.jsonl.xz"
BEFORE: Final = 60
"""Scrapes played first: the windows are full, the labels known, and the storm has its verdict and advice."""
COUNTED: Final = 10
"""Scrapes that are counted: single ones differ by what the storm does meanwhile."""
LINES: Final = {"parse": 5260, "judge": 4880, "metrics": 8160}
"""Lines, of kvwatch and the libraries it calls, per scrape of one engine in a storm. A change that needs more or fewer writes it here."""
HEADROOM: Final = 0.25
"""Versions of Python and of the libraries differ by a few per cent."""


class LineCounter:
    """Counts the lines that run in this thread."""

    def __init__(self) -> None:
        self.lines = dict.fromkeys(LINES, 0)

    @contextmanager
    def counting(self, part: str) -> Iterator[None]:
        def trace(_frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
            self.lines[part] += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


@pytest.fixture(scope="module")
def lines_of_a_cycle() -> dict[str, float]:
    """By part of a cycle."""
    judge, memory, counter, clock = judge_for(Settings(), interval=1.0), LabelMemory(), LineCounter(), SystemClock()
    views: list[TargetView] = []
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: views, clock, fast_window=30.0, slow_window=120.0))
    with Reader(RECORDING, pytest.fail) as reader:
        for number, entry in enumerate(islice(reader, BEFORE + COUNTED)):
            assert entry.body is not None
            lines = counter if number >= BEFORE else LineCounter()
            with lines.counting("parse"):
                scrape = parse_scrape(entry.body, entry.t, entry.t, memory)
            with lines.counting("judge"):
                judgement = judge.scraped(scrape)
            views[:] = [TargetView("vllm", "http://vllm:8000/metrics", 1.0, at=clock.monotonic(), assessments=judgement.assessments)]
            with lines.counting("metrics"):
                generate_latest(registry)
    assert [one.verdict.state for one in judgement.assessments] == [State.KV_BOUND]  # else the counts are of something else
    return {part: lines / COUNTED for part, lines in counter.lines.items()}


@pytest.mark.parametrize("part", LINES)
def test_a_cycle_runs_no_more_lines_than_it_did(lines_of_a_cycle: dict[str, float], part: str) -> None:
    assert lines_of_a_cycle[part] == pytest.approx(LINES[part], rel=HEADROOM)
