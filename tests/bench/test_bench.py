"""The bars of the design, measured: processor time against Prometheus in the same run, memory, 500 targets, /metrics under load."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import threading
import time
import urllib.request

import pytest
from bench_processes import LINES, Daemon, Measured

PATHS = 500
AS_AT_5_S = ("--window.fast=600ms", "--window.slow=2400ms")
"""At a poll of 100 ms, windows of as many polls as 30 s and 2 min hold at the default of 5 s."""


def rest(seconds):
    threading.Event().wait(seconds)


def noted(table, what, measured, bar, holds):
    table.append((what, measured, bar, holds))
    return holds


def scrapes(url):
    """How often Prometheus has scraped, from its own counters."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        for line in response.read().decode().splitlines():
            if line.startswith("prometheus_target_interval_length_seconds_count"):
                return float(line.rpartition(" ")[2])
    return 0.0


@pytest.fixture
def prometheus(server, require_tool, tmp_path):
    """Prometheus that scrapes the server ten times a second, and its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    target = server.removeprefix("http://")
    config = {
        "scrape_configs": [
            {"job_name": "vllm", "scrape_interval": "100ms", "scrape_timeout": "100ms", "static_configs": [{"targets": [target]}]}
        ]
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    process = subprocess.Popen(
        [
            require_tool("prometheus"),
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=error",
        ],
        stderr=subprocess.DEVNULL,
    )
    measured = Measured(process)
    yield measured, f"http://{address}"
    measured.close()


def test_processor_time_of_a_cycle_against_a_scrape_of_prometheus(server, prometheus, start, table, tmp_path):
    """Both ask the same target ten times a second, at the same time; medians of five stretches."""
    theirs, their_url = prometheus
    ours = start(Daemon([f"{server}/metrics"], "--poll.interval=100ms", *AS_AT_5_S, cwd=tmp_path))
    rest(15)
    our_cycles, their_cycles = [], []
    for _ in range(5):
        before = ours.cpu(), ours.total("kvwatch_target_scrapes_total"), theirs.cpu(), scrapes(their_url)
        rest(6)
        after = ours.cpu(), ours.total("kvwatch_target_scrapes_total"), theirs.cpu(), scrapes(their_url)
        our_cycles.append(1000 * (after[0] - before[0]) / (after[1] - before[1]))
        their_cycles.append(1000 * (after[2] - before[2]) / (after[3] - before[3]))
    our_ms, their_ms = statistics.median(our_cycles), statistics.median(their_cycles)
    table.append((f"processor time of a scrape of {LINES} lines, Prometheus", f"{their_ms:.2f} ms", "", True))
    under = noted(table, "  fetch, parse, classify, publish: kvwatch", f"{our_ms:.2f} ms", "<= 2 ms", our_ms <= 2.0)
    assert noted(table, "  kvwatch below Prometheus", f"{our_ms / their_ms:.2f}", "< 1", our_ms < their_ms)
    assert under


def test_500_targets_every_5_s_on_one_core_and_what_each_costs(server, start, table, tmp_path):
    """Long enough for the slow window to be full: what a target keeps after that is bounded by the half hour of its plots."""
    core = min(os.sched_getaffinity(0))
    one = start(Daemon([f"{server}/0/metrics"], cwd=tmp_path))
    many = start(Daemon([f"{server}/{n}/metrics" for n in range(PATHS)], core=core, cwd=tmp_path))
    rest(20)
    cpu, polls, began = many.cpu(), many.total("kvwatch_target_scrapes_total"), time.perf_counter()
    rest(130)
    seconds = time.perf_counter() - began
    share = (many.cpu() - cpu) / seconds
    polled = many.total("kvwatch_target_scrapes_total") - polls
    overruns, failures = many.total("kvwatch_tick_overruns_total"), many.total("kvwatch_target_scrape_failures_total")
    alone, each = one.rss_kib(), (many.rss_kib() - one.rss_kib()) / (PATHS - 1)
    holds = [
        noted(table, "memory with 1 target", f"{alone / 1024:.1f} MiB", "<= 60 MiB", alone <= 60 * 1024),
        noted(table, "memory of each further target", f"{each:.0f} KiB", "<= 50 KiB", each <= 50),
        noted(table, f"{PATHS} targets every 5 s on one core: share of it", f"{share:.0%}", "< 100 %", share < 1.0),
        noted(table, "  polls left out", f"{overruns:.0f} of {polled:.0f}", "0", overruns == 0),
        noted(table, "  polls that failed", f"{failures:.0f}", "0", failures == 0),
        noted(
            table, "  polls made, of those due", f"{polled / (seconds / 5 * PATHS):.1%}", ">= 99 %", polled >= 0.99 * seconds / 5 * PATHS
        ),
    ]
    assert all(holds)


def test_memory_is_flat_over_thousands_of_polls(server, start, table, tmp_path):
    daemon = start(Daemon([f"{server}/{n}/metrics" for n in range(10)], "--poll.interval=100ms", *AS_AT_5_S, cwd=tmp_path))
    rest(20)
    first, polls = daemon.rss_kib(), daemon.total("kvwatch_target_scrapes_total")
    rest(60)
    grown, polled = daemon.rss_kib() - first, daemon.total("kvwatch_target_scrapes_total") - polls
    assert noted(table, f"memory grown over {polled:.0f} polls", f"{grown} KiB", "<= 1024 KiB", grown <= 1024)


def test_metrics_under_50_scrapes_a_second(server, start, table, tmp_path):
    daemon = start(Daemon([f"{server}/{n}/metrics" for n in range(4)], "--poll.interval=1s", cwd=tmp_path))
    rest(20)
    took, due = [], time.perf_counter()
    for _ in range(1000):
        rest(max(0.0, due - time.perf_counter()))
        due += 1 / 50
        began = time.perf_counter()
        daemon.text()
        took.append(1000 * (time.perf_counter() - began))
    took.sort()
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    table.append(("/metrics at 50 scrapes a second, p50", f"{p50:.1f} ms", "", True))
    assert noted(table, "  p99", f"{p99:.1f} ms", "<= 10 ms", p99 <= 10)
