"""What the measurements share. They run with ``--benchmarks`` (``make bench``) and are skipped without."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from bench_processes import LINES, Measured

from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.load import ClosedLoop
from kvwatch.simulator.simulation import Simulation

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    if config.getoption("--benchmarks"):
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="a measurement of minutes: run `make bench`"))


@pytest.fixture(scope="session")
def body(tmp_path_factory):
    """A file with an exposition of 560 lines: the simulator's, filled up with what Python's own collectors say."""
    simulation = Simulation(ServerConfig(), ClosedLoop(16), start_unix=1.75e9)
    simulation.advance(60.0)
    lines = expose(simulation).splitlines()
    filling = [
        f'http_request_duration_seconds_bucket{{handler="/v1/completions",le="{n / 100}",method="POST"}} {n}.0' for n in range(LINES)
    ]
    lines = [*lines, *filling][:LINES]
    path = tmp_path_factory.mktemp("bench") / "body.prom"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def server(body):
    """Base URL of a server, in a process of its own, that answers every path with the body."""
    process = subprocess.Popen([sys.executable, str(HERE / "bench_server.py"), str(body)], stdout=subprocess.PIPE, text=True)
    yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    Measured(process).close()


@pytest.fixture
def start():
    """Starts processes, ends them after the test."""
    with contextlib.ExitStack() as processes:

        def started(measured):
            processes.callback(measured.close)
            return measured

        yield started


@pytest.fixture(scope="session")
def table():
    """Rows of (what, measured, bar, whether it holds), printed at the end."""
    rows = []
    yield rows
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    print()  # noqa: T201 - the result
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        print("  ".join(cells), "" if row[3] else "  MISSED")  # noqa: T201 - the result
