"""One POST over a real socket: credentials, TLS and every way to fail."""

from __future__ import annotations

import base64
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import peers
import pytest
import requests

from kvwatch.clock import SystemClock
from kvwatch.config.settings import AlertmanagerSettings, BasicAuthSettings
from kvwatch.exporter.alertmanager.client import Outcome, http_post
from kvwatch.transport.adapter import DeadlineAdapter

CLOCK = SystemClock()


class Peer(HTTPServer):
    """Keeps the requests and answers with what the test wants."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.text, self.body, self.headers_out = 200, "", b"", {}
        self.requests: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Peer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        for name, value in self.server.headers_out.items():
            self.send_header(name, value)
        answer = self.server.body or self.server.text.encode()
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def peer() -> Iterator[Peer]:
    server = Peer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_post_goes_to_the_v2_api_below_the_given_url(peer: Peer) -> None:
    assert http_post(f"{peer.url}/am/", AlertmanagerSettings(), CLOCK)(b"[]") == (Outcome.ACCEPTED, "")
    ((path, headers, body),) = peer.requests
    assert (path, headers["Content-Type"], body) == ("/am/api/v2/alerts", "application/json", b"[]")
    assert headers["User-Agent"].startswith("kvwatch/")
    assert "Authorization" not in headers


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(202, Outcome.ACCEPTED), (400, Outcome.REFUSED), (401, Outcome.FAILED), (404, Outcome.FAILED), (503, Outcome.FAILED)],
)
def test_the_status_decides_and_the_peers_words_are_kept_short(peer: Peer, status: int, outcome: Outcome) -> None:
    peer.status, peer.text = status, "no " * 10_000
    got, detail = http_post(peer.url, AlertmanagerSettings(), CLOCK)(b"[]")
    assert got is outcome
    assert len(detail) <= 300
    assert outcome is Outcome.ACCEPTED or detail.startswith(f"HTTP {status} no no")


def test_the_words_of_a_packed_answer_are_read(peer: Peer) -> None:
    peer.status, peer.body, peer.headers_out = 500, gzip.compress(b"out of disk"), {"Content-Encoding": "gzip"}
    assert http_post(peer.url, AlertmanagerSettings(), CLOCK)(b"[]") == (Outcome.FAILED, "HTTP 500 out of disk")


@pytest.mark.parametrize(("ca_file", "verify"), [(None, True), (Path("/etc/ca.pem"), "/etc/ca.pem")])
def test_a_certificate_is_always_checked_by_the_authority_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, ca_file: Path | None, verify: bool | str
) -> None:
    asked: list[object] = []

    def send(_adapter: object, _request: object, **how: object) -> requests.Response:
        asked.append(how["verify"])
        raise requests.ConnectionError

    monkeypatch.setattr(DeadlineAdapter, "send", send)
    http_post("https://am.example", AlertmanagerSettings(ca_file=ca_file), CLOCK)(b"[]")
    assert asked == [verify]


def test_a_redirect_is_not_followed(peer: Peer) -> None:
    peer.status, peer.headers_out = 302, {"Location": f"{peer.url}/elsewhere"}
    outcome, detail = http_post(peer.url, AlertmanagerSettings(), CLOCK)(b"[]")
    assert (outcome, detail) == (Outcome.FAILED, "HTTP 302")
    assert len(peer.requests) == 1


def test_a_bearer_token_is_read_anew_for_every_post(peer: Peer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    post = http_post(peer.url, AlertmanagerSettings(bearer_token_file=token), CLOCK)
    for text in ("first\n", "second\n"):
        token.write_text(text)
        post(b"[]")
    assert [headers["Authorization"] for _, headers, _ in peer.requests] == ["Bearer first", "Bearer second"]


def test_basic_auth_is_utf8_and_keeps_spaces(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(" pässwort \n", encoding="utf-8")
    auth = BasicAuthSettings(username="kvwatch", password_file=tmp_path / "password")
    http_post(peer.url, AlertmanagerSettings(basic_auth=auth), CLOCK)(b"[]")
    scheme, _, value = peer.requests[0][1]["Authorization"].partition(" ")
    assert (scheme, base64.b64decode(value).decode()) == ("Basic", "kvwatch: pässwort ")


def test_the_environments_proxy_and_netrc_are_not_asked(peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert http_post(peer.url, AlertmanagerSettings(), CLOCK)(b"[]") == (Outcome.ACCEPTED, "")
    assert "Authorization" not in peer.requests[0][1]


@pytest.mark.parametrize("secret", [b"top\nsecret", "gehe\u20acim".encode(), b"\xff\xfesecret"], ids=["newline", "not latin-1", "not text"])
def test_a_token_that_cannot_be_sent_is_a_failure_that_does_not_quote_it(peer: Peer, tmp_path: Path, secret: bytes) -> None:
    (tmp_path / "token").write_bytes(secret)
    outcome, detail = http_post(peer.url, AlertmanagerSettings(bearer_token_file=tmp_path / "token"), CLOCK)(b"[]")
    assert outcome is Outcome.FAILED
    assert detail
    assert "secret" not in detail
    assert "gehe" not in detail
    assert peer.requests == []


def test_a_missing_credentials_file_is_a_failure_that_names_the_file(peer: Peer, tmp_path: Path) -> None:
    outcome, detail = http_post(peer.url, AlertmanagerSettings(bearer_token_file=tmp_path / "gone"), CLOCK)(b"[]")
    assert outcome is Outcome.FAILED
    assert "gone" in detail


def test_nobody_listening_is_a_failure() -> None:
    with HTTPServer(("127.0.0.1", 0), Handler) as closed:
        url = f"http://127.0.0.1:{closed.server_port}"
    outcome, detail = http_post(url, AlertmanagerSettings(), CLOCK)(b"[]")
    assert outcome is Outcome.FAILED
    assert "Connection refused" in detail


HEAD = b"HTTP/1.1 500 Internal Server Error\r\n"


def test_an_alertmanager_that_has_accepted_need_not_end_its_answer() -> None:
    server = peers.Peer(peers.drips(b"HTTP/1.1 200 OK\r\n\r\n", b"x"))
    try:
        assert http_post(server.url, AlertmanagerSettings(timeout=0.5), CLOCK)(b"[]") == (Outcome.ACCEPTED, "")
    finally:
        server.close()


@pytest.mark.parametrize(
    "behave",
    [
        pytest.param(peers.drips(b"HTTP/1.1 200 OK\r\nX: ", b"x"), id="header-dripped"),
        pytest.param(peers.drips(HEAD + b"\r\n", b"x"), id="body-dripped"),
        pytest.param(peers.drips(b"", b"H"), id="first-line-dripped"),
        pytest.param(peers.is_silent, id="silent"),
        pytest.param(peers.resets, id="reset"),
        pytest.param(peers.sends(), id="closed"),
        pytest.param(peers.sends(HEAD + b"Content-Length: 100\r\n\r\nhalf"), id="body-cut"),
        pytest.param(peers.sends(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope"), id="badly-packed"),
        pytest.param(peers.sends(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"), id="badly-chunked"),
        pytest.param(peers.sends(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx"), id="two-lengths"),
        pytest.param(peers.sends(b"SSH-2.0-OpenSSH\r\n"), id="not-http"),
        pytest.param(peers.sends(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"), id="redirect"),
    ],
)
def test_whatever_it_does_is_an_outcome_within_the_timeout(behave, seconds):
    server = peers.Peer(behave)
    try:
        post, ended = http_post(server.url, AlertmanagerSettings(timeout=0.5), CLOCK), []
        assert seconds(lambda: ended.append(post(b"[]"))) < 10.0
        ((outcome, detail),) = ended
        assert outcome is Outcome.FAILED
        assert detail
        assert detail.isprintable()
    finally:
        server.close()
