"""Absurd numbers in a page that is otherwise right: through parser, classifier, advice and alerts to everything that is shown."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.daemon.target_watch import TargetWatch
from kvwatch.exporter.metrics.collector import ViewCollector
from kvwatch.exporter.metrics.telemetry import Telemetry
from kvwatch.exporter.web.chart_history import ChartHistory
from kvwatch.exporter.web.messages import HttpAnswer, HttpRequest
from kvwatch.exporter.web.page import StatusPage
from kvwatch.exporter.web.routes import Sources, make_app
from kvwatch.exporter.web.runbook import runbook
from kvwatch.exporter.web.status import status_json
from kvwatch.poller.vllm import parse_scrape
from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.load import ClosedLoop
from kvwatch.simulator.simulation import Simulation

_ABSURD: Final = (
    "NaN", "+Inf", "-Inf", "0", "-0", "-1", "-0.5", "5e-324", "1e-308", "1e-9", "0.5", "0.999999", "1.0000001", "3", "1e9", "4294967296",
    "1e14", "1e15", "1.1e15", "9007199254740993", "1e16", "3.5e38", "1e300", "1e308", "-1e308", "9" * 40,
)  # fmt: skip
_PAGES: Final = 30
_NO_NUMBER: Final = re.compile(r"\b(?:nan|inf|[0-9.]*e\+?[0-9]{2,})\b")
_PATHS: Final = ("/metrics", "/", "/api/v1/status")


@lru_cache
def _pages() -> list[list[str]]:
    """An engine with more to do than its cache holds: lines of its page every 5 s."""
    simulation = Simulation(ServerConfig(), ClosedLoop(48), start_unix=1.75e9)
    pages = []
    for _ in range(_PAGES):
        simulation.advance(5.0)
        pages.append(expose(simulation).splitlines())
    return pages


class _Clock:
    """Moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return 1.75e9 + self.now


@contextmanager
def numbers() -> Iterator[Callable[[random.Random], None]]:
    """A daemon of its own for each input, whose polls are made by hand."""
    with capture_logs() as logs:

        def attempt(noise: random.Random) -> None:
            logs.clear()
            _attempt(noise)
            wrong = [entry for entry in logs if entry["log_level"] == "error" and entry["event"] != "alert.fired"]
            if wrong:
                raise AssertionError(wrong)

        yield attempt


def _attempt(noise: random.Random) -> None:
    settings = Settings(targets=["http://a/metrics"])
    (target,) = settings.targets
    clock, history, now_on = _Clock(), ChartHistory(), [""]
    watch = TargetWatch(
        target,
        settings.poll.interval,
        read=lambda: parse_scrape(now_on[0].encode(), clock.monotonic(), clock.unix()),
        judge=judge_for(settings, target),
        clock=clock,
        telemetry=Telemetry(),
        publish=lambda _watch, view: history.record(view),
        others=tuple,
    )
    registry = CollectorRegistry()
    registry.register(ViewCollector(lambda: (watch.view,), clock, fast_window=30.0, slow_window=120.0))
    page = StatusPage(lambda: (watch.view,), clock, history)
    app = make_app(Sources(registry, page.render, lambda: status_json((watch.view,), clock), runbook, lambda: True, lambda: True))
    spoilt = set(noise.sample([line.rpartition(" ")[0] for line in _pages()[-1] if line[0] != "#"], noise.choice((1, 2, 5, 40))))
    start = noise.randrange(len(_pages()) // 2)
    for lines in _pages()[start : start + noise.choice((2, 4, 14))]:
        clock.now += noise.choice((5.0, 5.0, 5.0, 60.0))
        often = noise.random()
        now_on[0] = "".join(
            f"{_spoilt(line, noise) if noise.random() < often else line}\n" if line.rpartition(" ")[0] in spoilt else f"{line}\n"
            for line in lines
        )
        watch.tick()
        for path in noise.sample(_PATHS, 1):
            _look(app(HttpRequest("GET", path)))
    for path in _PATHS:
        _look(app(HttpRequest("GET", path)))


def _spoilt(line: str, noise: random.Random) -> str:
    return f"{line.rpartition(' ')[0]} {noise.choice(_ABSURD)}"


def _look(answer: HttpAnswer) -> None:
    """Whether it is what was asked for, and every number in it is one."""
    text, kind = answer.body.decode(), dict(answer.headers)["Content-Type"]
    if answer.status != HTTPStatus.OK:
        raise AssertionError(text)
    if kind.startswith("application/json"):
        json.loads(text, parse_constant=_no_number)
    elif kind.startswith("text/plain"):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not math.isfinite(sample.value):
                    _no_number(str(sample))
    elif found := _NO_NUMBER.search(text):
        _no_number(text[max(0, found.start() - 80) : found.end() + 20])


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} is shown")
