"""The real thing on loopback: kvwatch, Prometheus with our rules, Alertmanagers with our configuration, and a webhook that takes notes.

One Alertmanager is told by Prometheus, the other by kvwatch itself, so one storm measures both roads.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml
from e2e_targets import Targets
from peers import free_port

from kvwatch.clock import SystemClock

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = ROOT / "rules" / "kvwatch.rules.yaml"
ALERTMANAGER_CONFIG: Final = ROOT / "deploy" / "alertmanager" / "alertmanager.yaml"
EXAMPLE_RECEIVER: Final = "http://127.0.0.1:9099"
CLOCK: Final = SystemClock()
PATIENCE: Final = 20.0

RequireTool = Callable[[str], Path]


def get(url: str) -> Any:
    """A JSON answer, or text that is none."""
    with urlopen(url, timeout=5) as response:
        text = response.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text


def wait_for(what: str, check: Callable[[], Any], seconds: float, pause: threading.Event | None = None) -> Any:
    """The first true answer of *check*; fails naming *what* when there is none in time."""
    end = CLOCK.monotonic() + seconds
    while True:
        try:
            found = check()
        except (URLError, ConnectionError, TimeoutError):
            found = None
        if found:
            return found
        if CLOCK.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        (pause or threading.Event()).wait(0.25)


class Program:
    """A process with a log file, stopped by its own handle."""

    def __init__(
        self, name: str, command: Sequence[object], folder: Path, ready: str, answers: Callable[[Program], bool] | None = None
    ) -> None:
        self._name = name
        self._command = [str(part) for part in command]
        self.log_path = folder / f"{name}.log"
        self._is_up = answers or (lambda _program: bool(get(ready)))
        self.start()

    def start(self) -> None:
        """Start it, again if need be, and wait until it answers."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)
        try:
            wait_for(f"{self._name} is ready", self._answers, PATIENCE)
        except AssertionError as error:
            self.stop(signal.SIGKILL)
            raise AssertionError(f"{error}\n{self.log()[-2000:]}") from None

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"{self._name} ended with {self._process.returncode}\n{self.log()[-2000:]}")
        return self._is_up(self)

    def log(self) -> str:
        """What it has printed."""
        return self.log_path.read_text(errors="replace")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it and wait for the end."""
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class Arrival:
    """One notification: when (monotonic), from which road, to which receiver, and the alerts in it."""

    at: float
    road: str
    receiver: str
    status: str
    alerts: tuple[dict[str, Any], ...]


class Webhook:
    """Notes every notification; the path says road and receiver."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                _, road, receiver = self.path.split("/")
                outer.arrivals.append(Arrival(CLOCK.monotonic(), road, receiver, payload["status"], tuple(payload["alerts"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                """Tests are quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def of(self, road: str, receiver: str, *, target: str | None = None, status: str | None = None) -> list[tuple[float, dict[str, Any]]]:
        """Time and alert of everything that arrived there."""
        return [
            (arrival.at, alert)
            for arrival in list(self.arrivals)
            if (arrival.road, arrival.receiver) == (road, receiver)
            for alert in arrival.alerts
            if (target is None or alert["labels"].get("target") == target) and (status is None or alert["status"] == status)
        ]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def alertmanager(
    require_tool: RequireTool,
    folder: Path,
    webhook: Webhook,
    road: str,
    *flags: str,
    change: Callable[[str], str] = str,
    answers: Callable[[Program], bool] | None = None,
) -> tuple[Program, str]:
    """An Alertmanager with the example configuration, *changed* by the test, whose receivers are the webhook; and its URL."""
    home = folder / f"alertmanager-{road}"
    home.mkdir()
    (home / "config.yaml").write_text(change(ALERTMANAGER_CONFIG.read_text().replace(EXAMPLE_RECEIVER, f"{webhook.url}/{road}")))
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        require_tool("alertmanager"),
        f"--config.file={home / 'config.yaml'}",
        f"--storage.path={home / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
        *flags,
    ]
    return Program(f"alertmanager-{road}", command, folder, f"{url}/-/ready", answers), url


class Stack:
    """Everything, running."""

    def __init__(self, require_tool: RequireTool, folder: Path, targets: Targets) -> None:
        self.webhook = Webhook()
        self._programs: list[Program] = []
        try:
            self._start(require_tool, folder, targets)
        except BaseException:
            self.close()
            raise

    def _start(self, require_tool: RequireTool, folder: Path, targets: Targets) -> None:
        self.by_prometheus, prometheus_alertmanager = alertmanager(require_tool, folder, self.webhook, "prometheus")
        self._programs.append(self.by_prometheus)
        self.by_push, push_alertmanager = alertmanager(require_tool, folder, self.webhook, "push")
        self._programs.append(self.by_push)

        self.kvwatch_url = f"http://127.0.0.1:{free_port()}"
        address = self.kvwatch_url.removeprefix("http://")
        settings = {
            "targets": [{"name": name, "url": targets.url(name)} for name in targets.names],
            "web": {"listen_address": address},
            "alertmanager": {"urls": [push_alertmanager], "labels": {"namespace": "llm", "pod": "vllm-0"}},
            "log": {"format": "json"},
        }
        (folder / "kvwatch.yaml").write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-m", "kvwatch", "run", "--config.file", folder / "kvwatch.yaml"]
        self.kvwatch = Program("kvwatch", command, folder, f"{self.kvwatch_url}/-/healthy")
        self._programs.append(self.kvwatch)

        prometheus = {
            "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
            "rule_files": [str(RULES)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [prometheus_alertmanager.removeprefix("http://")]}]}]},
            "scrape_configs": [
                {"job_name": "kvwatch", "static_configs": [{"targets": [address], "labels": {"namespace": "llm", "pod": "vllm-0"}}]}
            ],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(prometheus))
        self.prometheus_url = f"http://127.0.0.1:{free_port()}"
        command = [
            require_tool("prometheus"),
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address={self.prometheus_url.removeprefix('http://')}",
            "--log.level=warn",
        ]
        self._programs.append(Program("prometheus", command, folder, f"{self.prometheus_url}/-/ready"))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant query to Prometheus."""
        return get(f"{self.prometheus_url}/api/v1/query?{urlencode({'query': expression})}")["data"]["result"]

    def kvwatch_fires(self, target: str, alert: str) -> bool:
        """Whether kvwatch itself says so at this moment."""
        text = get(f"{self.kvwatch_url}/metrics")
        wanted = (f'target="{target}"', f'alert="{alert}"')
        return any(
            line.startswith("kvwatch_alert_active{") and all(part in line for part in wanted) and line.endswith(" 1.0")
            for line in text.splitlines()
        )

    def close(self) -> None:
        """End every process."""
        for program in reversed(self._programs):
            program.stop()
        self.webhook.close()
