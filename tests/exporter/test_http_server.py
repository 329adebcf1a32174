from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
import structlog
from live_process import PATIENCE, eventually

from kvwatch.errors import ConfigError
from kvwatch.exporter.web import conversation
from kvwatch.exporter.web.messages import HttpAnswer
from kvwatch.exporter.web.server import PLACES, serve
from kvwatch.exporter.web.tls import Certificate, TlsFiles

IMPATIENCE = 8.0
"""Seconds a client that does everything right is willing to wait; well below every timeout of the server."""


def hello(request):
    body = b"x" * 4_000_000 if request.path == "/large" else b"hello\n"
    return HttpAnswer(200, (("Content-Type", "text/plain"), ("Content-Length", str(len(body)))), body)


@pytest.fixture(params=["plain", "tls"])
def running(request):
    """A server, plain or under TLS, and a way to connect to it."""
    if request.param == "plain":
        with closing(serve(hello, host="127.0.0.1", port=0)) as server:
            yield server, lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=IMPATIENCE)
    else:
        cert = request.getfixturevalue("certificate")
        trust = ssl.create_default_context(cafile=cert)
        with closing(serve(hello, host="127.0.0.1", port=0, tls=Certificate(TlsFiles(cert, cert)).context)) as server:
            yield server, lambda: http.client.HTTPSConnection("127.0.0.1", server.port, timeout=IMPATIENCE, context=trust)


def get(connect, path="/"):
    with closing(connect()) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


def test_it_answers_on_the_port_it_took(running):
    server, connect = running
    assert server.port != 0
    assert server.url.endswith(f"://127.0.0.1:{server.port}")
    assert get(connect) == (200, b"hello\n")


def test_connections_are_kept_and_reused(running):
    _, connect = running
    with closing(connect()) as connection:
        for _ in range(3):
            connection.request("GET", "/")
            assert connection.getresponse().read() == b"hello\n"


def test_no_part_of_an_answer_waits_until_the_part_before_is_acknowledged(running):
    """A client acknowledges after up to 40 ms; some requests on, it no longer does so at once."""
    _, connect = running
    took = []
    with closing(connect()) as connection:
        for _ in range(40):
            began = time.perf_counter()
            connection.request("GET", "/")
            connection.getresponse().read()
            took.append(time.perf_counter() - began)
    assert min(took[20:]) < 0.035


def test_the_server_header_names_no_version(running):
    _, connect = running
    with closing(connect()) as connection:
        connection.request("GET", "/")
        assert connection.getresponse().headers["Server"] == "kvwatch"


def crowd(stack, server, clients=3 * PLACES):
    """Many connections, three times what there is room for."""
    return [stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port)))) for _ in range(clients)]


def test_silent_clients_keep_nobody_waiting(running):
    """They have connected and say nothing, under TLS not even hello."""
    server, connect = running
    with ExitStack() as silent:
        crowd(silent, server)
        assert get(connect) == (200, b"hello\n")


def test_clients_that_stop_in_the_middle_of_their_first_line_keep_nobody_waiting(running):
    server, connect = running
    with ExitStack() as slow:
        for client in crowd(slow, server):
            with suppress(OSError):  # it has given way already
                client.sendall(b"\x16\x03\x01" if server.url.startswith("https") else b"GET /")
        assert get(connect) == (200, b"hello\n")


def test_clients_that_do_not_read_their_answer_keep_nobody_waiting(running):
    """Each is owed 4 MB; the server holds no more than 8 MiB of what is not read."""
    _, connect = running
    with ExitStack() as slow:
        for _ in range(12):
            client = slow.enter_context(closing(connect()))
            client.request("GET", "/large")
        assert get(connect) == (200, b"hello\n")


def test_a_crowd_is_logged_once(running):
    server, connect = running
    with structlog.testing.capture_logs() as events, ExitStack() as silent:
        crowd(silent, server)
        assert get(connect) == (200, b"hello\n")
    assert [event["event"] for event in events if event["log_level"] != "debug"] == ["http.crowded"]


def test_whoever_comes_in_a_flood_has_the_time_for_a_handshake(running, monkeypatch):
    """Three times as many as there are places, before and after it: it answers as slowly as a busy host, and does not give way."""
    server, connect = running
    monkeypatch.setattr("kvwatch.exporter.web.server._GRACE_SECONDS", 0.5)
    with ExitStack() as flood:
        crowd(flood, server)
        slow = flood.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)))
        (later := threading.Thread(target=lambda: crowd(flood, server, PLACES))).start()
        time.sleep(0.1)  # of the client, between its connection and its first byte
        if server.url.startswith("https"):
            slow = flood.enter_context(connect()._context.wrap_socket(slow, server_hostname="127.0.0.1"))
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        later.join(PATIENCE)


def test_connections_that_gave_way_leave_no_descriptor(running):
    server, connect = running
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with ExitStack() as silent:
            crowd(silent, server)
            assert get(connect) == (200, b"hello\n")
    assert eventually(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before)


def drip(sock, request):
    for byte in request:
        sock.sendall(bytes([byte]))
        time.sleep(0.05)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(conversation, "REQUEST_SECONDS", 0.4)
    monkeypatch.setattr(conversation, "ANSWER_SECONDS", 0.4)


def test_a_client_that_is_silent_between_two_requests_is_cut_off(impatient, running):
    _, connect = running
    with closing(connect()) as connection:
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"hello\n"
        assert connection.sock.recv(1) == b""


def test_a_client_that_does_not_read_is_cut_off(impatient, running):
    _, connect = running
    with closing(connect()) as connection:
        connection.request("GET", "/large")
        connection.sock.settimeout(PATIENCE)
        threading.Event().wait(1.5)
        received = 0
        with suppress(OSError):
            while piece := connection.sock.recv(1 << 20):
                received += len(piece)
        assert received < 4_000_000


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"GET [ HTTP/1.1\r\nHost: x\r\n\r\n", id="no-path"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", id="folded-header"),
        pytest.param(b"GET / HTTP/1.0\r\n\r\n", id="old"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", id="small-body"),
    ],
)
def test_odd_requests_are_answered_by_the_routes(running, request_bytes):
    assert exchange(running, request_bytes).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(b"\x00\xff\r\n\r\n", b"400", id="binary"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", b"400", id="no-host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 100_000, b"431", id="header"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"x" * 9000, b"413", id="large-body"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400", id="two-lengths"),
        pytest.param(b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", b"400", id="space"),
    ],
)
def test_what_is_no_request_is_refused(running, request_bytes, status):
    assert exchange(running, request_bytes)[9:12] == status


def exchange(running, request_bytes):
    """What comes back first."""
    _, connect = running
    with closing(connect()) as connection:
        connection.connect()
        connection.sock.sendall(request_bytes)
        return connection.sock.recv(4096)


def test_a_client_that_drips_is_cut_off_in_the_middle_of_its_request(impatient, running):
    """Each byte comes in time, the request as a whole does not; per-byte timeouts alone would wait for ever."""
    _, connect = running
    with closing(connect()) as connection:
        connection.connect()
        started = time.monotonic()  # noqa: TID251 - real sockets, real time
        with pytest.raises(OSError):  # noqa: PT011 - reset, broken pipe or end of TLS stream, as the kernel pleases
            drip(connection.sock, b"GET / HTTP/1.1\r\nX: " + b"y" * 1000)
        assert time.monotonic() - started < IMPATIENCE  # noqa: TID251


def test_nonsense_on_the_wire_ends_neither_the_server_nor_the_test(running):
    server, connect = running
    for nonsense in (b"\x00\xff" * 50 + b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 100_000 + b"\r\n\r\n", b"\r\n" * 100):
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=IMPATIENCE)) as client:
            client.sendall(nonsense)
    assert get(connect) == (200, b"hello\n")


def test_plain_http_to_a_tls_port_gets_no_answer_and_hurts_nobody(certificate):
    with closing(serve(hello, host="127.0.0.1", port=0, tls=Certificate(TlsFiles(certificate, certificate)).context)) as server:
        with pytest.raises((http.client.HTTPException, OSError)):
            get(lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=IMPATIENCE))
        trust = ssl.create_default_context(cafile=certificate)
        assert get(lambda: http.client.HTTPSConnection("127.0.0.1", server.port, timeout=IMPATIENCE, context=trust)) == (200, b"hello\n")


def test_close_waits_for_no_client_gives_the_port_back_and_leaves_no_thread():
    before = set(threading.enumerate())
    with closing(serve(hello, host="127.0.0.1", port=0)) as first:
        port = first.port
    server = serve(hello, host="127.0.0.1", port=port)
    with closing(socket.create_connection(("127.0.0.1", port))):
        started = time.monotonic()  # noqa: TID251 - real sockets, real time
        server.close()
        assert time.monotonic() - started < IMPATIENCE  # noqa: TID251
        with closing(serve(hello, host="127.0.0.1", port=port)) as again:
            assert again.port == port
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(timeout=IMPATIENCE)
    assert [thread for thread in left if thread.is_alive()] == []


def test_a_port_that_is_taken_is_one_line_naming_the_setting():
    with closing(serve(hello, host="127.0.0.1", port=0)) as server, pytest.raises(ConfigError) as caught:
        serve(hello, host="127.0.0.1", port=server.port)
    assert str(caught.value) == f"web.listen_address 127.0.0.1:{server.port}: Address already in use"


def test_a_certificate_that_is_not_there_is_one_line_naming_the_setting(tmp_path):
    missing = tmp_path / "no.pem"
    with pytest.raises(ConfigError) as caught:
        Certificate(TlsFiles(missing, missing))
    assert str(caught.value) == f"web.cert_file {missing}, web.key_file {missing}: No such file or directory"


def test_a_certificate_that_is_none_is_one_line_naming_the_setting(tmp_path):
    nonsense = tmp_path / "cert.pem"
    nonsense.write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"^web\.cert_file .*cert\.pem: ") as caught:
        Certificate(TlsFiles(nonsense, nonsense))
    assert "\n" not in str(caught.value)
