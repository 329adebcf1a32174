"""The links of pushed alerts speak what kvwatch's page speaks: a page at night is one click from the runbook."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from live_process import eventually
from peers import free_port

from kvwatch.clock import SystemClock
from kvwatch.commands.cli import main
from kvwatch.config.settings import Settings
from kvwatch.daemon.daemon import Daemon
from kvwatch.model import EngineId, Scrape, Snapshot

ENGINE = EngineId("demo-8b", "0")
CLOCK = SystemClock()


class Alertmanager(ThreadingHTTPServer):
    """Takes every alert and keeps it."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Takes)
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def end(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Takes(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.alerts.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def alertmanager() -> Iterator[Alertmanager]:
    server = Alertmanager()
    yield server
    server.end()


@pytest.fixture(scope="module")
def certificate(require_tool: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [
        require_tool("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert,
    ]  # fmt: skip
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return cert, key


@pytest.fixture(params=["plain", "cert_file", "config.file"])
def web(request: pytest.FixtureRequest, certificate: tuple[Path, Path], tmp_path: Path) -> dict[str, Any]:
    """The ways to say what the front speaks."""
    cert, key = map(str, certificate)
    if request.param == "cert_file":
        return {"cert_file": cert, "key_file": key}
    if request.param == "config.file":
        file = tmp_path / "web.yaml"
        file.write_text(json.dumps({"tls_server_config": {"cert_file": cert, "key_file": key}}))
        return {"config": {"file": str(file)}}
    return {}


def storming(_target: object) -> Scrape:
    """Ten preemptions a second, since 100 s ago."""
    at = CLOCK.monotonic()
    count = 10.0 * (at - BEGAN)
    counted: dict[str, Any] = {"preemptions": count, "finished": count / 2, "generation_tokens": count, "prompt_tokens": count}
    snapshot = Snapshot(ENGINE, at, running=20.0, waiting=10.0, kv_usage=0.99, **counted)
    return Scrape(at, (snapshot,))


BEGAN = CLOCK.monotonic() - 100.0


def test_a_pushed_page_links_to_where_the_daemon_answers(
    alertmanager: Alertmanager, web: dict[str, Any], certificate: tuple[Path, Path]
) -> None:
    port = free_port()
    daemon = Daemon(
        Settings(
            targets=[{"url": "http://vllm:8000/metrics"}],
            poll={"interval": "200ms", "timeout": "200ms"},
            web={"listen_address": f"127.0.0.1:{port}", **web},
            alertmanager={"urls": [alertmanager.url]},
        ),
        CLOCK,
        storming,
    )
    try:
        daemon.start()
        eventually(lambda: alertmanager.alerts)
        annotations = alertmanager.alerts[0]["annotations"]
        links = [annotations["status_url"], annotations["runbook_url"], alertmanager.alerts[0]["generatorURL"]]
        assert {urlsplit(link).scheme for link in links} == {"https" if web else "http"}
        assert {urlsplit(link).port for link in links} == {port}
        trust = ssl.create_default_context(cafile=certificate[0])
        for link in links:  # this host answers here, whatever its name
            here = urlsplit(link)._replace(netloc=f"127.0.0.1:{port}").geturl()
            with urllib.request.urlopen(here, context=trust if web else None) as answer:
                assert answer.status == 200
    finally:
        daemon.stop()


def test_the_fire_drill_links_to_where_the_daemon_of_these_settings_answers(
    alertmanager: Alertmanager, web: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "kvwatch.yaml"
    file.write_text(json.dumps({"web": web, "alertmanager": {"urls": [alertmanager.url]}}))
    assert main(["alert-test", "--config.file", str(file)]) == 0
    (alert,) = alertmanager.alerts
    assert alert["annotations"]["status_url"].startswith("https://" if web else "http://")
