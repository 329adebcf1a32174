"""The image's HEALTHCHECK, against real servers on loopback."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvwatch.daemon.healthcheck import health_url, main


class Health(http.server.BaseHTTPRequestHandler):
    """Answers /-/healthy with the server's status, anything else with 404."""

    def do_GET(self):
        status = getattr(self.server, "status", 500) if self.path == "/-/healthy" else 404
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"kvwatch is Healthy.\n" if status == 200 else b"kvwatch is not healthy\n")

    def log_message(self, *arguments):
        """Not on the test's stderr."""


@contextmanager
def answering(status: int, context: ssl.SSLContext | None = None) -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Health) as server:
        vars(server)["status"] = status
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        pytest.param({}, "http://127.0.0.1:20058/-/healthy", id="default"),
        pytest.param({"KVWATCH_WEB__LISTEN_ADDRESS": ":9000"}, "http://127.0.0.1:9000/-/healthy", id="every address"),
        pytest.param({"KVWATCH_WEB__LISTEN_ADDRESS": "[::]:9000"}, "http://[::1]:9000/-/healthy", id="every IPv6 address"),
        pytest.param({"KVWATCH_WEB__LISTEN_ADDRESS": "10.0.0.7:9000"}, "http://10.0.0.7:9000/-/healthy", id="one address"),
        pytest.param({"KVWATCH_WEB__CERT_FILE": "/tls/tls.crt"}, "https://127.0.0.1:20058/-/healthy", id="TLS"),
    ],
)
def test_it_asks_where_the_environment_says_kvwatch_listens(environment, url):
    assert health_url(environment) == url


@pytest.mark.parametrize(("status", "exit_code"), [pytest.param(200, 0, id="healthy"), pytest.param(503, 1, id="not healthy")])
def test_the_exit_code_is_the_answer(capsys, status, exit_code):
    with answering(status) as address:
        assert main([], {"KVWATCH_WEB__LISTEN_ADDRESS": address}) == exit_code
    assert capsys.readouterr().out.startswith("kvwatch is ")


def test_a_self_signed_certificate_is_good_enough_for_loopback(tmp_path, require_tool):
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    make = [require_tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kvwatch.example"]
    subprocess.run([*make, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with answering(200, context) as address:
        assert main([], {"KVWATCH_WEB__LISTEN_ADDRESS": address, "KVWATCH_WEB__CERT_FILE": str(certificate)}) == 0


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        pytest.param("http://127.0.0.1:1/-/healthy", "Connection refused", id="nobody listens"),
        pytest.param("ftp://127.0.0.1/-/healthy", "not an http or https URL", id="no such scheme"),
        pytest.param("http://127.0.0.1:99999/-/healthy", "Port out of range", id="no such port"),
    ],
)
def test_no_answer_is_one_line_and_exit_code_1(capsys, url, fault):
    assert main([url], {}) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"{url}: ")
    assert fault in output.err
    assert output.err.count("\n") == 1


def test_it_runs_as_a_module_without_loading_kvwatch_s_dependencies():
    heavy = "{'pydantic', 'requests', 'structlog', 'prometheus_client'}"
    code = f"import sys, kvwatch.daemon.healthcheck; print(sorted(set(sys.modules) & {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
