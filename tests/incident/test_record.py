"""``kvwatch record``: what it writes, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from itertools import pairwise

import pytest
from peers import answer, is_silent, sends
from recordings_made import command, kvwatch

from kvwatch.clock import SystemClock
from kvwatch.incident.recording import Reader
from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.load import ClosedLoop
from kvwatch.simulator.server import SimulatorServer
from kvwatch.simulator.simulation import Simulation


def entries(path):
    with Reader(path, pytest.fail) as reader:
        return reader.target, list(reader)


@pytest.fixture
def server(peer, repository):
    """Answers as a vLLM does."""
    return peer(sends(answer((repository / "tests" / "data" / "expositions" / "late_v1.prom").read_bytes())))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
def test_a_recording_of_a_server_is_replayed(tmp_path, server, suffix):
    path = tmp_path / f"storm{suffix}"
    recorded = kvwatch("record", server.url, "-o", path, "--interval=200ms", "--for=900ms")
    assert (recorded.returncode, recorded.stdout) == (0, "")
    target, found = entries(path)
    assert recorded.stderr.splitlines()[-1] == f"{path}: {len(found)} scrapes, 0 failed"
    assert target == server.url
    assert 2 <= len(found) <= 5
    assert all(b"vllm:num_requests_running" in entry.body for entry in found)
    assert all(after.t - before.t > 0.05 for before, after in pairwise(found))
    replayed = kvwatch("replay", "--format=jsonl", path)
    assert replayed.returncode == 0
    assert [json.loads(line)["t"] for line in replayed.stdout.splitlines()] == [entry.t for entry in found]


def test_a_recording_of_the_simulator_has_its_engine(tmp_path):
    path = tmp_path / "simulated.jsonl"
    with SimulatorServer(Simulation(ServerConfig(), ClosedLoop(4))) as simulator:
        assert kvwatch("record", simulator.url, "-o", path, "--interval=200ms", "--for=500ms").returncode == 0
    found = [json.loads(line) for line in kvwatch("replay", "--format=jsonl", path).stdout.splitlines()]
    assert {(line["model_name"], line["engine"]) for line in found} == {(ServerConfig().model_name, "0")}


@pytest.mark.parametrize("received", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_ends_a_recording_whole(tmp_path, server, received):
    path = tmp_path / "storm.jsonl.xz"
    with subprocess.Popen(
        command("record", server.url, "-o", path, "--interval=100ms"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        clock, idle = SystemClock(), threading.Event()
        while not path.exists():
            assert process.poll() is None
            idle.wait(0.02)
        idle.wait(1.5)
        began = clock.monotonic()
        process.send_signal(received)
        _, said = process.communicate(timeout=60)
        took = clock.monotonic() - began
    assert process.returncode == 0
    assert took < 20.0
    assert "Traceback" not in said
    found = entries(path)[1]
    assert len(found) >= 2
    assert said.splitlines()[-1] == f"{path}: {len(found)} scrapes, 0 failed"


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        pytest.param(is_silent, "timeout: ", id="hang"),
        pytest.param(sends(answer(b"oops", b"HTTP/1.1 500 Internal Server Error")), "http_status: ", id="500"),
        pytest.param(sends(answer(b"\xff\xfe")), "encoding: the body is not UTF-8", id="not-utf-8"),
        pytest.param(None, "connect: ", id="refused"),
    ],
)
def test_a_target_that_does_not_answer_is_recorded_as_such(tmp_path, peer, behave, reason):
    if behave is None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
    else:
        url = peer(behave).url
    path = tmp_path / "down.jsonl"
    recorded = kvwatch("record", url, "-o", path, "--interval=200ms", "--for=300ms")
    assert recorded.returncode == 1
    found = entries(path)[1]
    assert recorded.stderr.splitlines()[-1].startswith(f"{path}: {len(found)} scrapes, {len(found)} failed; {url}: {reason}")
    assert len(found) >= 1
    assert all(entry.body is None and entry.error.startswith(reason) for entry in found)


def test_without_an_end_a_dead_server_is_given_up_and_leaves_no_file_in_the_way(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    recorded = kvwatch("record", address, "-o", tmp_path / "down.jsonl", "--interval=100ms")
    assert (recorded.returncode, list(tmp_path.iterdir())) == (1, [])
    assert f"3 scrapes, 3 failed; http://{address}/metrics: connect: " in recorded.stderr


def test_what_is_no_metrics_is_recorded_all_the_same(tmp_path, peer):
    """Its replay says what was wrong; a recording is evidence."""
    path = tmp_path / "html.jsonl"
    kvwatch("record", peer(sends(answer(b"<html></html>"))).url, "-o", path, "--for=100ms")
    assert entries(path)[1][0].body == b"<html></html>"


def test_a_file_that_exists_is_refused(tmp_path):
    path = tmp_path / "storm.jsonl"
    path.write_text("precious")
    recorded = kvwatch("record", "http://127.0.0.1:1/metrics", "-o", path, "--for=1s")
    assert recorded.returncode == 2
    assert recorded.stderr == f"kvwatch: {path}: exists already; kvwatch does not overwrite a recording\n"
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        pytest.param(["http://127.0.0.1:1/m", "-o", "no/such/x.jsonl"], "no/such/x.jsonl: No such file or directory", id="directory"),
        pytest.param(
            ["ftp://127.0.0.1", "-o", "x"], "'ftp://127.0.0.1': a URL must start with http:// or https:// and name a host", id="scheme"
        ),
        pytest.param(["h:1", "-o", "x.txt"], "x.txt: a recording is written as .jsonl, .jsonl.gz or .jsonl.xz", id="extension"),
        pytest.param(["h:1", "-o", "x"], "x: a recording is written as .jsonl, .jsonl.gz or .jsonl.xz", id="no-extension"),
        pytest.param(["h:1", "-o", "x.csv.gz"], "x.csv.gz: a recording is written as .jsonl, .jsonl.gz or .jsonl.xz", id="packed"),
        pytest.param(
            ["http://u:hunter2@h/m", "-o", "x"], "credentials do not belong in a URL: use bearer_token_file or basic_auth", id="credentials"
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(tmp_path, repository, arguments, fault):
    recorded = kvwatch("record", *arguments, cwd=tmp_path, PYTHONPATH=str(repository))
    assert (recorded.returncode, recorded.stdout, recorded.stderr) == (2, "", f"kvwatch: {fault}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_is_one_line_and_exit_2(tmp_path, server):
    """A file may grow to 40 KiB here, which is a scrape or two."""
    path = tmp_path / "storm.jsonl"
    recorded = subprocess.run(
        ["sh", "-c", 'ulimit -f 80; exec "$@"', "sh", *command("record", server.url, "-o", path, "--interval=100ms", "--for=20s")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert recorded.returncode == 2
    assert recorded.stderr.splitlines()[-1] == f"kvwatch: {path}: File too large"
    assert "Traceback" not in recorded.stderr
    assert b"vllm:" in path.read_bytes()
