"""Five hundred clients that mean no good at a live daemon, plain and under TLS: it goes on answering, polling, and hardly logs."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from live_process import PATIENCE, eventually
from peers import answer, free_port

CLIENTS = 500
SCRAPES = 100
FAMILIES = (b"num_requests_running", b"num_requests_waiting", b"kv_cache_usage_perc")
PAGE = b"".join(b'vllm:%s{engine="0",model_name="demo-8b"} 1\n' % name for name in FAMILIES)


@pytest.fixture(params=["plain", "tls"])
def daemon(request, peer, tmp_path):
    asked = []

    def behave(connection, _stopped):
        asked.append(1)
        connection.sendall(answer(PAGE))

    port, arguments, certificate = free_port(), [], None
    if request.param == "tls":
        certificate = request.getfixturevalue("certificate")
        web = tmp_path / "web.yml"
        web.write_text(f"tls_server_config: {{cert_file: {certificate}, key_file: {certificate}}}")
        arguments = [f"--web.config.file={web}"]
    command = [sys.executable, "-m", "kvwatch", "run", peer(behave).url, f"--web.listen-address=127.0.0.1:{port}", "--poll.interval=1s"]
    log = tmp_path / "log"
    with log.open("w") as stderr, subprocess.Popen([*command, "--log.format=json", *arguments], stderr=stderr) as process:
        try:
            yield Running(process, port, certificate, log, asked)
        finally:
            process.kill()


class Running:
    def __init__(self, process, port, certificate, log, asked):
        self.process, self.port, self.certificate, self.log, self.asked = process, port, certificate, log, asked
        self.context = None if certificate is None else ssl.create_default_context(cafile=certificate)

    def get(self, path):
        """The status, on a connection of its own."""
        where = ("127.0.0.1", self.port)
        made = http.client.HTTPConnection(*where, timeout=PATIENCE) if self.context is None else self._tls(where)
        with closing(made) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            return response.status

    def _tls(self, where):
        return http.client.HTTPSConnection(*where, timeout=PATIENCE, context=self.context)  # type: ignore[call-overload]

    def up(self):
        try:
            return self.get("/-/healthy") == 200
        except OSError:
            return False

    def memory(self):
        """Resident MiB."""
        with open(f"/proc/{self.process.pid}/status") as status:  # noqa: PTH123
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


@contextmanager
def attackers(running):
    """All of them connected, until the end."""
    certificate = () if running.certificate is None else (running.certificate,)
    command = [sys.executable, Path(__file__).parent.parent / "hostile.py", str(running.port), str(CLIENTS), *certificate]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


def test_five_hundred_hostile_clients(daemon):
    assert eventually(daemon.up)
    for _ in range(20):
        daemon.get("/metrics")
    before, polls = daemon.memory(), len(daemon.asked)
    with attackers(daemon):
        for scrape in range(SCRAPES):
            assert daemon.get(("/metrics", "/-/healthy")[scrape % 2]) == 200
        assert daemon.memory() < before + 20.0
        assert eventually(lambda: len(daemon.asked) > polls + 2)
    events = [json.loads(line)["event"] for line in daemon.log.read_text().splitlines()]
    assert events.count("http.crowded") == 1
    assert len(events) <= 10
    daemon.process.terminate()
    assert daemon.process.wait(PATIENCE) == 0
