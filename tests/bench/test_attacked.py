"""/metrics at 50 scrapes a second under 500 hostile clients, beside `prometheus_client`'s own server that nobody attacks."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from bench_processes import Daemon, Measured
from test_bench import noted, rest

HERE = Path(__file__).parent
SCRAPES, SECONDS_BETWEEN = 1000, 1 / 50


@pytest.fixture(params=["plain", "tls"])
def under_tls(request):
    """The certificate, with its key in the same file, or nothing."""
    return None if request.param == "plain" else request.getfixturevalue("certificate")


@pytest.fixture
def control(start, under_tls):
    """The port of the library's server, with what it says of itself."""
    command = [sys.executable, str(HERE / "control_server.py"), *([under_tls, under_tls] if under_tls else ())]
    measured = start(Measured(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
    return int(measured.process.stdout.readline())


def scrape(port, context):
    """Milliseconds of a scrape on a connection of its own, and its text."""
    began = time.perf_counter()
    where = ("127.0.0.1", port)
    made = (
        http.client.HTTPConnection(*where, timeout=10)
        if context is None
        else http.client.HTTPSConnection(*where, timeout=10, context=context)
    )
    with closing(made) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read()
    return 1000 * (time.perf_counter() - began), text


def quantile(values, share):
    return sorted(values)[int(share * (len(values) - 1))]


def figures(values):
    return f"p50 {quantile(values, 0.5):.1f}, p99 {quantile(values, 0.99):.1f}, most {max(values):.0f} ms"


def total(text, name):
    return sum(float(line.rpartition(b" ")[2]) for line in text.splitlines() if line.startswith(name.encode() + b"{"))


@pytest.mark.parametrize("after", [None, 2.0], ids=["they stay", "they come back after 2 s"])
def test_metrics_at_50_scrapes_a_second_under_500_hostile_clients(server, start, table, tmp_path, *, under_tls, control, after):
    flags, context = [], None
    if under_tls is not None:
        (tmp_path / "web.yml").write_text(f"tls_server_config: {{cert_file: {under_tls}, key_file: {under_tls}}}")
        flags, context = [f"--web.config.file={tmp_path / 'web.yml'}"], ssl.create_default_context(cafile=under_tls)
    daemon = start(Daemon([f"{server}/metrics"], "--poll.interval=1s", *flags, cwd=tmp_path))
    port = int(daemon.url.rpartition(":")[2])
    for _ in range(200):
        text = scrape(port, context)[1]
    memory, left_out = daemon.rss_kib(), total(text, "kvwatch_tick_overruns_total")
    hostile = [sys.executable, str(HERE.parent / "hostile.py"), str(port), "500", *([under_tls] if under_tls else ())]
    attackers = start(
        Measured(subprocess.Popen([*hostile, *([] if after is None else ["--return", str(after)])], stdout=subprocess.PIPE, text=True))
    )
    attackers.process.stdout.readline()
    took, theirs, due = [], [], time.perf_counter()
    polls, began = total(text, "kvwatch_target_scrapes_total"), time.perf_counter()
    for _ in range(SCRAPES):
        rest(max(0.0, due - time.perf_counter()))
        due += SECONDS_BETWEEN
        milliseconds, text = scrape(port, context)
        took.append(milliseconds)
        theirs.append(scrape(control, context)[0])
    seconds = time.perf_counter() - began
    made = total(text, "kvwatch_target_scrapes_total") - polls
    grown = (daemon.rss_kib() - memory) / 1024
    log = [json.loads(line)["event"] for line in daemon.log.read_text().splitlines()]
    who = f"{'TLS' if under_tls else 'plain'}, {'they stay' if after is None else f'back after {after:g} s'}"
    left_out = total(text, "kvwatch_tick_overruns_total") - left_out
    table.append((f"{who}: prometheus_client, not attacked, at load {os.getloadavg()[0]:.1f}", figures(theirs), "", True))
    holds = [
        noted(table, "  kvwatch under 500 hostile clients", figures(took), "p99 <= 50 ms", quantile(took, 0.99) <= 50),
        noted(table, "  polls left out", f"{left_out:.0f} of {made:.0f} in {seconds:.0f} s", "0", left_out == 0 and made >= seconds - 2),
        noted(table, "  memory grown", f"{grown:.1f} MiB", "<= 20 MiB", grown <= 20),
        noted(table, "  lines of log", f"{len(log)}", "<= 10", len(log) <= 10),
    ]
    assert all(holds)
