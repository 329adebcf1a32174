"""A day of polls at 5 s, 17 280, in a few minutes, with engines, models and targets coming and going: memory, threads, descriptors."""

from __future__ import annotations

import json
import re
import statistics
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from bench_processes import Daemon
from test_bench import AS_AT_5_S, noted, rest

from kvwatch.clock import SystemClock

POLLS = 17_280
TARGETS, OF = 10, 30
"""Targets at a time, of so many that take turns."""
TURN_SECONDS = 2.0
"""How long the same targets, engines and models are there."""
WARM_POLLS = 10_000
"""Until every cache, window and history is full."""
MOST_KIB = 2048


class Fleet(ThreadingHTTPServer):
    """Every path is a vLLM whose model has another name every turn, with one to three engines."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, body):
        super().__init__(("127.0.0.1", 0), Handler)
        self._body, self._clock, self.asked = body, SystemClock(), 0

    def page(self):
        now = self._clock.monotonic()
        turn = int(now / TURN_SECONDS)
        lines = [line.replace("demo-8b", f"model-{turn}") for line in self._body.splitlines()]
        more = [
            line.replace('engine="0"', f'engine="{number}"') for number in range(1, 1 + turn % 3) for line in lines if 'engine="0"' in line
        ]
        text = "\n".join([*lines, *more, ""])
        return re.sub(r"^(vllm:generation_tokens_total\S+) \S+$", rf"\1 {1000 * now}", text, flags=re.MULTILINE).encode()


class Handler(BaseHTTPRequestHandler):
    server: Fleet

    def do_GET(self):
        page = self.server.page()
        self.server.asked += self.path.endswith("/metrics")
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_arguments):
        """A measurement is quiet."""


@pytest.fixture
def fleet(body):
    with Fleet(body.read_text()) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def growth(values):
    """From the median of the first third to that of the last: what is seen is noisy, polls and answers under way among it."""
    third = len(values) // 3
    return statistics.median(values[-third:]) - statistics.median(values[:third])


def test_a_day_of_polls_with_everything_coming_and_going(fleet, start, table, tmp_path):
    named, address = tmp_path / "targets.json", f"127.0.0.1:{fleet.server_port}"

    def name(turn):
        numbers = [(turn + place) % OF for place in range(TARGETS)]
        groups = [
            {"targets": [address], "labels": {"__metrics_path__": f"/{number}/metrics", "instance": f"pod-{number}"}} for number in numbers
        ]
        fresh = tmp_path / "fresh"
        fresh.write_text(json.dumps(groups))
        fresh.replace(named)

    name(0)
    flags = ("--poll.interval=100ms", *AS_AT_5_S, f"--discovery.files={named}", "--discovery.refresh=1s")
    daemon = start(Daemon([], *flags, cwd=tmp_path))
    process, turn, seen = Path(f"/proc/{daemon.process.pid}"), 0, []
    while fleet.asked < WARM_POLLS + POLLS:
        rest(TURN_SECONDS)
        turn += 1
        name(turn)
        daemon.text()
        for path in ("/", "/api/v1/status"):
            urllib.request.urlopen(daemon.url + path, timeout=30).close()
        if fleet.asked > WARM_POLLS:
            seen.append((daemon.rss_kib(), *(sum(1 for _ in (process / kind).iterdir()) for kind in ("task", "fd"))))
    memory, threads, descriptors = ([one[column] for one in seen] for column in range(3))
    grown, what = growth(memory), f"{fleet.asked - WARM_POLLS} polls after {WARM_POLLS}, {turn} turns of targets, engines and models"
    holds = [
        noted(table, f"{what}: memory grown", f"{grown:.0f} KiB of {memory[0]}", "<= 2048 KiB", grown <= MOST_KIB),
        noted(table, "  threads grown", f"{growth(threads):.1f} of {statistics.median(threads)}", "<= 2", growth(threads) <= 2),
        noted(
            table, "  descriptors grown", f"{growth(descriptors):.1f} of {statistics.median(descriptors)}", "<= 2", growth(descriptors) <= 2
        ),
    ]
    assert all(holds)
