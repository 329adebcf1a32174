"""What a poll costs, counted and not timed: lines of Python that run and memory, the same on any machine however busy it is."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvwatch.assess import judge_for
from kvwatch.clock import SystemClock
from kvwatch.config.settings import Settings
from kvwatch.exporter.metrics.collector import ViewCollector
from kvwatch.exporter.web.messages import HttpRequest
from kvwatch.exporter.web.routes import Sources, make_app
from kvwatch.incident.recording import Reader
from kvwatch.model import State, TargetView
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.vllm import parse_scrape

RECORDING: Final = Path(__file__).parent / "data" / "recordings" / "kv_storm.jsonl.xz"
BEFORE: Final = 60
"""Scrapes played first: the windows are full, the labels known, and the storm has its verdict and advice."""
COUNTED: Final = 10
"""Scrapes that are counted: single ones differ by what the storm does meanwhile."""
LINES: Final = {"parse": 5530, "judge": 4440, "metrics": 9290}
"""Lines, of kvwatch and the libraries it calls, per scrape of one engine in a storm. A change that needs more or fewer writes it here.

Nine in ten of `metrics` are prometheus_client's, some 110 a sample and 70 a family: each series more costs one per cent.
"""
ROOM: Final = {"parse": 185, "judge": 9.4, "metrics": 46}
"""KiB that are needed at most while the same scrape is worked on, what is kept among them."""
SOON: Final = 12
"""Scrapes after which the storm has its verdict, at the latest."""
FLEET: Final = 200
HEADROOM: Final = 0.25
"""Versions of Python and of the libraries differ by a few per cent."""


class Room:
    """Measures the most memory that is taken at once."""

    def __init__(self) -> None:
        self.kib = dict.fromkeys(LINES, 0.0)

    @contextmanager
    def counting(self, part: str) -> Iterator[None]:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        yield
        self.kib[part] = max(self.kib[part], (tracemalloc.get_traced_memory()[1] - before) / 1024)


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


class Counter(Protocol):
    """What is measured around each part of a cycle."""

    def counting(self, part: str) -> AbstractContextManager[None]: ...


def play(before: Counter, counted: Counter) -> None:
    """Play the scrapes of `BEFORE` and those that are counted."""
    judge, memory, clock = judge_for(Settings(), interval=1.0), LabelMemory(), SystemClock()
    views: list[TargetView] = []
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: views, clock, fast_window=30.0, slow_window=120.0))
    with Reader(RECORDING, pytest.fail) as reader:
        for number, entry in enumerate(islice(reader, BEFORE + COUNTED)):
            assert entry.body is not None
            counter = counted if number >= BEFORE else before
            with counter.counting("parse"):
                scrape = parse_scrape(entry.body, entry.t, entry.t, memory)
            with counter.counting("judge"):
                judgement = judge.scraped(scrape)
            views[:] = [TargetView("vllm", "http://vllm:8000/metrics", 1.0, at=clock.monotonic(), assessments=judgement.assessments)]
            with counter.counting("metrics"):
                generate_latest(registry)
    assert [one.verdict.state for one in judgement.assessments] == [State.KV_BOUND]  # else the counts are of something else


@pytest.fixture(scope="module")
def lines_of_a_cycle() -> dict[str, float]:
    """By part of a cycle."""
    counter = LineCounter()
    play(LineCounter(), counter)
    return {part: lines / COUNTED for part, lines in counter.lines.items()}


@pytest.fixture(scope="module")
def room_of_a_cycle() -> Iterator[dict[str, float]]:
    """KiB by part of a cycle."""
    room = Room()
    tracemalloc.start()
    try:
        play(Room(), room)
        yield room.kib
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("part", LINES)
def test_a_cycle_runs_no_more_lines_than_it_did(lines_of_a_cycle: dict[str, float], part: str) -> None:
    assert lines_of_a_cycle[part] == pytest.approx(LINES[part], rel=HEADROOM)


@pytest.mark.parametrize("part", ROOM)
def test_a_cycle_takes_no_more_memory_than_it_did(room_of_a_cycle: dict[str, float], part: str) -> None:
    assert room_of_a_cycle[part] == pytest.approx(ROOM[part], rel=HEADROOM)


def test_what_a_fleet_needs_while_prometheus_scrapes_it_is_less_than_its_text() -> None:
    """Prometheus asks for gzip: neither all samples nor the text as a whole are ever there."""
    judge, views, clock = judge_for(Settings(), interval=1.0), [], SystemClock()
    with Reader(RECORDING, pytest.fail) as reader:
        for entry in islice(reader, BEFORE):
            assert entry.body is not None
            assessments = judge.scraped(parse_scrape(entry.body, entry.t, entry.t)).assessments
    views = [TargetView(f"vllm-{n}", f"http://vllm-{n}/metrics", 1.0, at=clock.monotonic(), assessments=assessments) for n in range(FLEET)]
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: views, clock, fast_window=30.0, slow_window=120.0))
    app, room = make_app(Sources(registry, *[Mock()] * 5)), Room()
    tracemalloc.start()
    try:
        app(HttpRequest("GET", "/metrics"))
        with room.counting("metrics"):
            packed = app(HttpRequest("GET", "/metrics", headers={"accept-encoding": "gzip"})).body
    finally:
        tracemalloc.stop()
    text = gzip.decompress(packed)
    assert len(text) > 5_000 * FLEET
    assert room.kib["metrics"] * 1024 < len(text)


def lines_of_judging(engines: int) -> int:
    """Lines that run while the last of some scrapes is judged, of so many engines in a storm."""
    judge, counter = judge_for(Settings(), interval=1.0), LineCounter()
    with Reader(RECORDING, pytest.fail) as reader:
        for number, entry in enumerate(islice(reader, BEFORE), start=1):
            if number > BEFORE - SOON:
                assert entry.body is not None
                page = "".join(entry.body.decode().replace('engine="0"', f'engine="{rank}"') for rank in range(engines))
                scrape = parse_scrape(page.encode(), entry.t, entry.t)
                with counter.counting("judge") if number == BEFORE else nullcontext():
                    judgement = judge.scraped(scrape)
    assert {one.verdict.state for one in judgement.assessments} == {State.KV_BOUND}
    return counter.lines["judge"]


def test_four_times_the_engines_cost_four_times_as_much() -> None:
    """They are ranks of one server, each of which looks at the others: at all of them once, not each at each."""
    assert lines_of_judging(120) == pytest.approx(4 * lines_of_judging(30), rel=0.05)


def test_the_other_targets_are_asked_once_and_only_where_something_binds() -> None:
    """There may be hundreds of them, and each target would look at all of the others after every poll."""
    judge, states = judge_for(Settings(), interval=1.0), set()
    with Reader(RECORDING, pytest.fail) as reader:
        for entry in islice(reader, BEFORE):
            assert entry.body is not None
            others = Mock(return_value=())
            (engine,) = judge.scraped(parse_scrape(entry.body, entry.t, entry.t), others).assessments
            assert others.call_count == (engine.verdict.state is State.KV_BOUND)
            states.add(engine.verdict.state)
    assert states == {State.UNKNOWN, State.HEALTHY, State.KV_BOUND}
