"""The borders that are sockets: what an Alertmanager or a target answers, and what anybody asks kvwatch's own port."""

from __future__ import annotations

import gzip
import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final

from mutation import PAGE, mutated, one_line
from structlog.testing import capture_logs

from kvwatch.clock import SystemClock
from kvwatch.config.settings import AlertmanagerSettings, Settings
from kvwatch.daemon.daemon import Daemon
from kvwatch.errors import ScrapeError
from kvwatch.exporter.alertmanager.client import Outcome, http_post
from kvwatch.model import FailureReason
from kvwatch.poller.fetch import fetch
from kvwatch.poller.vllm import parse_scrape

Attempt = Callable[[random.Random], None]

_SECONDS: Final = 5.0
_LINGER_SECONDS: Final = 0.05
_HEAD: Final = "HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\n{framing}\r\nX-A: b\r\nSet-Cookie: a=b; Path=/\r\n\r\n"
_STATUSES: Final = (
    "200 OK",
    "202 Accepted",
    "204 No Content",
    "400 Bad Request",
    "301 Moved",
    "401 No",
    "500 Oops",
    "503 Later",
    "999 What",
)
_REQUEST: Final = (
    "{method} {path} HTTP/1.1\r\nHost: kvwatch:20058\r\nUser-Agent: Prometheus/3.0\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n"
    "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n"
    "Accept-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
)
_PATHS: Final = (
    "/", "/metrics", "/metrics?name[]=kvwatch_state&name[]=x", "/-/healthy", "/-/ready", "/-/reload", "/api/v1/status", "/runbook",
    "/?state=kv_bound&q=demo", "/?q=%00%ff", "http://x/metrics", "*",
)  # fmt: skip
_OURS: Final = ("TypeError", "AttributeError", "KeyError", "IndexError", "AssertionError")
_LATIN: Final = "latin-1"


@contextmanager
def alertmanager() -> Iterator[Attempt]:
    """Answers to a post of alerts."""
    with _peer() as (port, answers):
        post = http_post(f"http://127.0.0.1:{port}", AlertmanagerSettings(timeout=_SECONDS), SystemClock())

        def attempt(noise: random.Random) -> None:
            answers.append(_answer(noise, '{"error": "bad"}'))
            outcome, detail = post(b"[]")
            one_line(detail)
            if (outcome is Outcome.ACCEPTED) != (detail == "") or detail.startswith(_OURS):
                raise AssertionError(f"{outcome}: {detail!r}")

        yield attempt


@contextmanager
def answer() -> Iterator[Attempt]:
    """Answers to a poll."""
    with _peer() as (port, answers):

        def attempt(noise: random.Random) -> None:
            answers.append(_answer(noise, PAGE))
            try:
                fetch(f"http://127.0.0.1:{port}/metrics", deadline=_SECONDS, max_bytes=1_000_000, clock=SystemClock())
            except ScrapeError as error:
                one_line(error.detail)
                if error.reason is FailureReason.INTERNAL:
                    raise

        yield attempt


@contextmanager
def request() -> Iterator[Attempt]:
    """Requests to kvwatch's own port, the daemon behind it."""
    clock = SystemClock()
    settings = Settings(targets=["http://127.0.0.1:1/metrics"], web={"listen_address": "127.0.0.1:0", "enable_lifecycle": True})
    daemon = Daemon(settings, clock, lambda _target: parse_scrape(PAGE.encode(), clock.monotonic()), reload=lambda: ())
    with capture_logs() as logs:
        daemon.start()
        port = int(daemon.url.rpartition(":")[2])

        def attempt(noise: random.Random) -> None:
            logs.clear()
            _ask(port, noise)
            if any(entry["log_level"] == "error" for entry in logs):
                raise AssertionError(logs)

        try:
            yield attempt
        finally:
            daemon.stop()


def _ask(port: int, noise: random.Random) -> None:
    asked = ""
    for _ in range(noise.choice((1, 1, 2))):
        asked += _REQUEST.format(method=noise.choice(("GET", "HEAD", "POST", "BREW")), path=noise.choice(_PATHS))
    sent = _noisy(mutated(asked, noise), noise)
    with closing(socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)) as client:
        got = b""
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(65536):
                got += piece
        except ConnectionError:  # it may hang up on who says nonsense; it may not leave him waiting
            pass
    status = re.match(rb"HTTP/1.1 (\d{3}) ", got)
    if got and status is None:
        raise AssertionError(f"{sent!r} is answered with {got[:80]!r}")
    if b"HTTP/1.1 500 " in got:
        raise AssertionError(f"{sent!r} is answered with 500")


def _answer(noise: random.Random, text: str) -> bytes:
    """An answer, in one of the framings there are, mutated before or after it was packed."""
    body = text.encode()
    packing = noise.choice(("", "", "", "gzip", "deflate", "br", "gzip, gzip"))
    if packing and noise.random() < 0.7:
        body = gzip.compress(body)
    framing = f"Content-Length: {len(body)}"
    if noise.random() < 0.3:
        framing = "Transfer-Encoding: chunked"
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    if packing:
        framing += f"\r\nContent-Encoding: {packing}"
    status, _, phrase = noise.choice(_STATUSES).partition(" ")
    head = _HEAD.format(status=status, phrase=phrase, framing=framing)
    return _noisy(mutated(head, noise) if noise.random() < 0.7 else head, noise, body)


def _noisy(head: str, noise: random.Random, body: bytes = b"") -> bytes:
    """Both as bytes, some of them changed now and then, and cut short now and then."""
    whole = head.encode(_LATIN, "replace") + body
    if noise.random() < 0.3:
        whole = bytes(byte if noise.random() > 0.005 else noise.randint(0, 255) for byte in whole)
    return whole[: noise.randint(0, len(whole))] if noise.random() < 0.1 else whole


@contextmanager
def _peer() -> Iterator[tuple[int, list[bytes]]]:
    """A server's port, and the answers it is to give: each connection gets one, and is closed then."""
    answers: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, answers), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1], answers
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(listener: socket.socket, answers: list[bytes]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(answers.pop())
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(_LINGER_SECONDS)
                connection.recv(65536)
            except OSError:  # the client has gone, or lingers itself
                pass
