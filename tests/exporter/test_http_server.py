from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import threading
import time
from contextlib import ExitStack, closing

import pytest

from kvwatch.errors import ConfigError
from kvwatch.exporter.web import server as server_module
from kvwatch.exporter.web.server import WORKERS, serve

IMPATIENCE = 3.0
"""Seconds a client that does everything right is willing to wait; well below every timeout of the server."""


def hello(environ, start_response):
    pieces = [b"x" * 40_000] * 100 if environ["PATH_INFO"] == "/large" else [b"hello\n"]
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(sum(map(len, pieces))))])
    return pieces


@pytest.fixture(scope="module")
def certificate(tmp_path_factory, require_tool):
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            require_tool("openssl"),
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.fixture(params=["plain", "tls"])
def running(request):
    """A server, plain or under TLS, and a way to connect to it."""
    if request.param == "plain":
        with closing(serve(hello, host="127.0.0.1", port=0)) as server:
            yield server, lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=IMPATIENCE)
    else:
        cert, key = request.getfixturevalue("certificate")
        trust = ssl.create_default_context(cafile=cert)
        with closing(serve(hello, host="127.0.0.1", port=0, cert_file=cert, key_file=key)) as server:
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


def test_the_server_header_names_no_version(running):
    _, connect = running
    with closing(connect()) as connection:
        connection.request("GET", "/")
        assert connection.getresponse().headers["Server"] == "kvwatch"


def test_silent_clients_keep_nobody_waiting(running):
    """More silent clients than workers: they have connected and say nothing, under TLS not even hello."""
    server, connect = running
    with ExitStack() as silent:
        for _ in range(4 * WORKERS):
            silent.enter_context(closing(socket.create_connection(("127.0.0.1", server.port))))
        assert get(connect) == (200, b"hello\n")


def test_a_client_that_stops_in_the_middle_of_its_first_line_keeps_nobody_waiting(running):
    server, connect = running
    with ExitStack() as slow:
        for _ in range(WORKERS - 1):
            client = slow.enter_context(closing(socket.create_connection(("127.0.0.1", server.port))))
            client.sendall(b"\x16\x03\x01" if server.url.startswith("https") else b"GET /")
        assert get(connect) == (200, b"hello\n")


def test_a_client_that_does_not_read_its_answer_keeps_nobody_waiting(running):
    _, connect = running
    with ExitStack() as slow:
        for _ in range(WORKERS - 1):
            client = slow.enter_context(closing(connect()))
            client.request("GET", "/large")
        assert get(connect) == (200, b"hello\n")


def drip(sock, request):
    for byte in request:
        sock.sendall(bytes([byte]))
        time.sleep(0.05)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.4)
    monkeypatch.setattr(server_module, "SWEEP_SECONDS", 0.1)


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
    cert, key = certificate
    with closing(serve(hello, host="127.0.0.1", port=0, cert_file=cert, key_file=key)) as server:
        with pytest.raises((http.client.HTTPException, OSError)):
            get(lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=IMPATIENCE))
        trust = ssl.create_default_context(cafile=cert)
        assert get(lambda: http.client.HTTPSConnection("127.0.0.1", server.port, timeout=IMPATIENCE, context=trust)) == (200, b"hello\n")


def test_close_gives_the_port_back_within_a_second_or_so_and_leaves_no_thread():
    before = set(threading.enumerate())
    with closing(serve(hello, host="127.0.0.1", port=0)) as first:
        port = first.port
    server = serve(hello, host="127.0.0.1", port=port)
    with closing(socket.create_connection(("127.0.0.1", port))):
        started = time.monotonic()  # noqa: TID251 - real sockets, real time
        server.close()
        assert time.monotonic() - started < 2.0  # noqa: TID251
        with closing(serve(hello, host="127.0.0.1", port=port)) as again:
            assert again.port == port
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(timeout=1.0)
    assert [thread for thread in left if thread.is_alive()] == []


def test_a_port_that_is_taken_is_one_line_naming_the_setting():
    with closing(serve(hello, host="127.0.0.1", port=0)) as server, pytest.raises(ConfigError) as caught:
        serve(hello, host="127.0.0.1", port=server.port)
    assert str(caught.value) == f"web.listen_address 127.0.0.1:{server.port}: Address already in use"


def test_a_certificate_that_is_not_there_is_one_line_naming_the_setting(tmp_path):
    missing = tmp_path / "no.pem"
    with pytest.raises(ConfigError) as caught:
        serve(hello, host="127.0.0.1", port=0, cert_file=missing, key_file=missing)
    assert str(caught.value) == f"web.cert_file {missing}, web.key_file {missing}: No such file or directory"


def test_a_certificate_that_is_none_is_one_line_naming_the_setting(tmp_path):
    nonsense = tmp_path / "cert.pem"
    nonsense.write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"^web\.cert_file .*cert\.pem: ") as caught:
        serve(hello, host="127.0.0.1", port=0, cert_file=nonsense, key_file=nonsense)
    assert "\n" not in str(caught.value)
