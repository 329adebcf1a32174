"""What may be done to the process itself: frozen, without a log to write to, without threads to start."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from live_process import PATIENCE, eventually, get
from peers import BODY, answer, free_port

from kvwatch.clock import SystemClock

PIPE_BYTES = 4096


class Asked:
    """Answers as a vLLM would and counts."""

    def __init__(self):
        self.times = 0

    def __call__(self, connection, _stopped):
        self.times += 1
        connection.sendall(answer())


@contextlib.contextmanager
def daemon(url, *arguments, **popen):
    """``kvwatch run`` on a port known beforehand, for its log may be gone; yields the process and where it answers."""
    port = free_port()
    command = [sys.executable, "-m", "kvwatch", "run", url, f"--web.listen-address=127.0.0.1:{port}", "--poll.interval=0.2s", *arguments]
    with subprocess.Popen(command, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **popen}) as process:
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def answers(url):
    try:
        return get(f"{url}/-/healthy")[0] == 200
    except OSError:
        return False


def goes_on(asked):
    """Whether some more polls come."""
    before = asked.times
    return eventually(lambda: asked.times >= before + 3)


def ends(process):
    """Seconds from SIGTERM to the end, which must be an orderly one."""
    clock = SystemClock()
    began = clock.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    return clock.monotonic() - began


def test_a_frozen_daemon_goes_on_when_it_is_thawed_and_still_obeys(peer):
    asked = Asked()
    with daemon(peer(asked).url) as (process, url):
        assert eventually(lambda: answers(url))
        for _ in range(4):
            process.send_signal(signal.SIGSTOP)
            threading.Event().wait(0.5)
            process.send_signal(signal.SIGCONT)
            assert goes_on(asked)
            assert answers(url)
        assert ends(process) < 2.0


def test_a_frozen_recorder_goes_on_when_it_is_thawed_and_ends_when_told(peer, tmp_path):
    asked, output = Asked(), tmp_path / "frozen.jsonl"
    command = [sys.executable, "-m", "kvwatch", "record", peer(asked).url, "-o", output, "--interval", "0.2s"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: asked.times >= 2)
            for _ in range(4):
                process.send_signal(signal.SIGSTOP)
                threading.Event().wait(0.3)
                process.send_signal(signal.SIGCONT)
                assert goes_on(asked)
            assert ends(process) < 6.0  # a scrape under way has 4 s
        finally:
            process.kill()
    assert len(output.read_text().splitlines()) >= asked.times


def test_a_hang_up_while_it_starts_does_not_end_it_and_a_flood_of_them_does_not_keep_it(peer):
    asked = Asked()
    with daemon(peer(asked).url) as (process, url):
        while not answers(url):  # from the moment the interpreter has read the first lines of kvwatch on
            if b"SigBlk:\t0000000000000001" in Path(f"/proc/{process.pid}/status").read_bytes():
                process.send_signal(signal.SIGHUP)
            assert process.poll() is None
        for _ in range(3000):
            process.send_signal(signal.SIGHUP)
        assert goes_on(asked)
        assert ends(process) < 2.0


ODD_HEADERS = {
    "no name": b": x",
    "no colon": b"X-A",
    "a space": b"X A: b",
    "a NUL": b"X\0A: b",
    "no ASCII": b"\xff: b",
    "folded": b"X-A: b\r\n c",
}


@pytest.mark.parametrize("header", ODD_HEADERS.values(), ids=list(ODD_HEADERS))
def test_an_odd_header_of_a_target_costs_no_poll_and_no_line_of_log(peer, tmp_path, header):
    asked = peer(lambda connection, _stopped: connection.sendall(answer(BODY, b"HTTP/1.1 200 OK", b"Content-Type: text/plain", header)))
    log = tmp_path / "log"
    with log.open("w") as stderr, daemon(asked.url, "--log.format=json", stderr=stderr) as (process, _url):
        assert eventually(lambda: len(asked.requests) >= 4)
        assert ends(process) < 2.0
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert len(events) <= 5, events
    assert "target.failed" not in events


def full_disk(stack):
    return {"stderr": stack.enter_context(open("/dev/full", "w"))}  # noqa: PTH123


def reader_gone(_stack):
    read, write = os.pipe()
    os.close(read)
    return {"stderr": write}


def reader_asleep(stack):
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    stack.callback(os.close, read)
    return {"stderr": write}


def closed(_stack):
    return {"stderr": None, "preexec_fn": lambda: os.close(2)}


@pytest.mark.parametrize("stderr", [full_disk, reader_gone, reader_asleep, closed])
def test_a_log_that_cannot_be_written_stops_neither_polls_nor_answers_nor_the_end(peer, stderr):
    asked = Asked()
    with contextlib.ExitStack() as stack:
        options = stderr(stack)
        process, url = stack.enter_context(daemon(peer(asked).url, "--log.level=debug", "--poll.interval=0.1s", **options))
        if isinstance(options["stderr"], int):
            os.close(options["stderr"])
        assert eventually(lambda: answers(url))
        assert eventually(lambda: asked.times >= 30)  # several times what the pipe holds
        assert answers(url)
        assert ends(process) < 2.0


def test_one_line_of_error_to_a_full_disk_is_still_exit_code_2(tmp_path):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, "-m", "kvwatch", "run", f"--config.file={tmp_path / 'missing.yaml'}"]
        assert subprocess.run(command, stderr=full, check=False).returncode == 2


def test_without_threads_a_name_is_looked_up_when_there_are_some_again(process_without_threads):
    """The lookup of a name needs a thread; when none can be started that poll fails, and the next one tries again."""
    assert json.loads(process_without_threads)["reasons"] == ["dns", "connect"]


@pytest.fixture
def process_without_threads():
    program = """
import json, threading
from kvwatch.clock import SystemClock
from kvwatch.errors import ScrapeError
from kvwatch.poller.fetch import fetch
real, reasons = threading.Thread.start, []
def broken(thread):
    raise RuntimeError("can't start new thread")
for start in (broken, real):
    threading.Thread.start = start
    try:
        fetch("http://localhost:1/metrics", deadline=2.0, max_bytes=1000, clock=SystemClock())
    except ScrapeError as error:
        reasons.append(str(error.reason))
print(json.dumps({"reasons": reasons}))
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


def test_with_few_descriptors_polls_go_on(peer):
    asked = Asked()

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    with daemon(peer(asked).url, preexec_fn=few) as (process, url):
        assert eventually(lambda: answers(url))
        assert goes_on(asked)
        assert ends(process) < 2.0
