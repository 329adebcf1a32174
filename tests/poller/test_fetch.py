"""Peers that answer, and every way of not answering: each ends in time, with its reason."""

from __future__ import annotations

import gzip
import socket
import threading
import tracemalloc
from functools import partial

import pytest
from peers import BODY, answer, drips, is_silent, resets, sends, sends_without_end

from kvwatch.clock import SystemClock
from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason
from kvwatch.poller.fetch import fetch as real_fetch
from kvwatch.transport import connection

DEADLINE = 0.3
LATE = 5.0
"""More than this is not the deadline any more, on a busy machine either."""

fetch = partial(real_fetch, deadline=DEADLINE, max_bytes=1_000_000, clock=SystemClock())


def failure_of(call):
    with pytest.raises(ScrapeError) as caught:
        call()
    return caught.value


def test_a_body_is_returned_as_it_was_sent(peer):
    assert fetch(peer(sends(answer())).url) == BODY


def test_a_body_in_chunks_is_put_together(peer):
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab 1\n\r\n5\r\ncd 2\n\r\n0\r\n\r\n"
    assert fetch(peer(sends(chunked)).url) == b"ab 1\ncd 2\n"


def test_a_body_that_ends_with_the_connection_is_whole(peer):
    assert fetch(peer(sends(b"HTTP/1.0 200 OK\r\n\r\n", BODY)).url) == BODY


def test_a_packed_body_is_unpacked_though_it_was_not_asked_for(peer):
    packed = answer(gzip.compress(BODY), b"HTTP/1.1 200 OK", b"Content-Encoding: gzip")
    assert fetch(peer(sends(packed)).url) == BODY


def test_the_request_says_what_it_wants_and_who_asks(peer):
    server = peer(sends(answer()))

    fetch(server.url)

    lines = server.requests[0].lower().split("\r\n")
    assert lines[0] == "get /metrics http/1.1"
    assert {"accept: text/plain;version=0.0.4", "accept-encoding: identity", "connection: close"} <= set(lines)
    assert any(line.startswith("user-agent: kvwatch/") for line in lines)


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        pytest.param(drips(b"HTTP/1.1 200 OK\r\n\r\n", b"x"), FailureReason.TIMEOUT, id="body-dripped"),
        pytest.param(drips(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", b"x"), FailureReason.TIMEOUT, id="body-with-length-dripped"),
        pytest.param(drips(b"HTTP/1.1 200 OK\r\nX: ", b"x"), FailureReason.TIMEOUT, id="header-dripped"),
        pytest.param(drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), FailureReason.TIMEOUT, id="continue-for-ever"),
        pytest.param(is_silent, FailureReason.TIMEOUT, id="accepts-and-is-silent"),
        pytest.param(resets, FailureReason.RESET, id="reset"),
        pytest.param(sends(), FailureReason.RESET, id="closed-without-answer"),
        pytest.param(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", BODY), FailureReason.RESET, id="short-body"),
        pytest.param(sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nab"), FailureReason.RESET, id="short-chunk"),
        pytest.param(sends(answer(b"oops", b"HTTP/1.1 500 Internal Server Error")), FailureReason.HTTP_STATUS, id="500"),
        pytest.param(sends(answer(b"", b"HTTP/1.1 401 Unauthorized")), FailureReason.HTTP_STATUS, id="401"),
        pytest.param(
            sends(answer(b"", b"HTTP/1.1 302 Found", b"Location: http://169.254.169.254/")), FailureReason.REDIRECT, id="redirect"
        ),
        pytest.param(sends_without_end, FailureReason.TOO_LARGE, id="body-without-end"),
        pytest.param(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"), FailureReason.TOO_LARGE, id="100-MB-announced"),
        pytest.param(sends(b"SSH-2.0-OpenSSH_9.2\r\n"), FailureReason.NOT_METRICS, id="not-http"),
        pytest.param(sends(answer(BODY, b"HTTP/1.1 200 OK", b"Content-Encoding: gzip")), FailureReason.ENCODING, id="says-gzip-and-is-not"),
        pytest.param(sends(answer(BODY, b"HTTP/1.1 200 OK", b"Content-Encoding: br")), FailureReason.ENCODING, id="packed-otherwise"),
        pytest.param(
            sends(answer(gzip.compress(BODY)[:-12], b"HTTP/1.1 200 OK", b"Content-Encoding: gzip")),
            FailureReason.RESET,
            id="gzip-cut-off",
        ),
    ],
)
def test_a_faulty_peer_gives_its_reason_within_the_deadline(peer, seconds, behave, reason):
    server = peer(behave)
    failures = []

    took = seconds(lambda: failures.append(failure_of(lambda: fetch(server.url))))

    assert failures[0].reason is reason
    assert took < LATE


def test_a_gzip_bomb_is_refused_without_being_unpacked(peer):
    bomb = gzip.compress(bytes(50_000_000))
    server = peer(sends(answer(bomb, b"HTTP/1.1 200 OK", b"Content-Encoding: gzip")))
    fetch_roomily = partial(fetch, deadline=5.0)

    tracemalloc.start()
    failure = failure_of(lambda: fetch_roomily(server.url))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert failure.reason is FailureReason.TOO_LARGE
    assert peak < 10_000_000


def test_a_body_of_just_the_size_allowed_passes_and_one_byte_more_does_not(peer):
    server = peer(sends(answer()))

    assert fetch(server.url, max_bytes=len(BODY)) == BODY
    assert failure_of(lambda: fetch(server.url, max_bytes=len(BODY) - 1)).reason is FailureReason.TOO_LARGE


def test_a_closed_port_is_told_from_a_name_that_does_not_exist():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    refused = failure_of(lambda: fetch(f"http://127.0.0.1:{port}/metrics"))
    unknown = failure_of(lambda: fetch("http://nobody.invalid:8000/metrics", deadline=5.0))

    assert (refused.reason, unknown.reason) == (FailureReason.CONNECT, FailureReason.DNS)
    assert str(port) in refused.detail
    assert "nobody.invalid" in unknown.detail


def test_a_resolver_that_hangs_costs_the_deadline_and_one_thread_per_name(monkeypatch, seconds):
    answered = threading.Event()
    asked = []

    def hangs(host, port, flags=0):
        if flags:
            raise OSError
        asked.append(host)
        answered.wait(60)
        return []

    monkeypatch.setattr(connection, "_getaddrinfo", hangs)
    failures = []

    def twice():
        failures.extend(failure_of(lambda: fetch("http://slow.invalid/metrics")) for _ in range(2))

    took = seconds(twice)
    answered.set()

    assert [failure.reason for failure in failures] == [FailureReason.DNS, FailureReason.DNS]
    assert asked == ["slow.invalid"]
    assert took < 2 * LATE


def test_an_address_that_does_not_answer_does_not_hide_one_that_does(peer, monkeypatch):
    server = peer(sends(answer()))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = closed.getsockname()
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (gone, ("127.0.0.1", server.port))]
    monkeypatch.setattr(connection, "_getaddrinfo", lambda *_: addresses)

    assert fetch("http://two.invalid/metrics") == BODY


def test_the_environment_is_not_heeded_unless_told_to(peer, monkeypatch, tmp_path):
    server = peer(sends(answer()))
    proxy = peer(sends(answer(b"from the proxy\n")))
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    assert fetch(server.url) == BODY
    assert "authorization" not in server.requests[0].lower()
    assert fetch(server.url, trust_environment=True) == b"from the proxy\n"
    assert "authorization: basic" in proxy.requests[0].lower()


def test_a_token_is_sent_and_read_anew_each_time(peer, tmp_path):
    server = peer(sends(answer()))
    file = tmp_path / "token"

    file.write_text("first-token\n")
    fetch(server.url, bearer_token_file=file)
    file.write_text("second-token\n")
    fetch(server.url, bearer_token_file=file)

    assert "Authorization: Bearer first-token\r\n" in server.requests[0]
    assert "Authorization: Bearer second-token\r\n" in server.requests[1]


@pytest.mark.parametrize(
    ("content", "behave", "reason"),
    [
        pytest.param("s3cret", sends(answer(b"s3cret", b"HTTP/1.1 403 Forbidden")), FailureReason.HTTP_STATUS, id="refused-by-the-peer"),
        pytest.param("s3cret\r\nX: s3cret", sends(answer()), FailureReason.INTERNAL, id="two-lines"),
        pytest.param("s3crét", sends(answer()), FailureReason.INTERNAL, id="not-ascii"),
        pytest.param(" \n", sends(answer()), FailureReason.INTERNAL, id="empty"),
    ],
)
def test_a_token_is_never_in_an_error(peer, tmp_path, content, behave, reason):
    file = tmp_path / "bearer"
    file.write_bytes(content.encode())
    server = peer(behave)

    failure = failure_of(lambda: fetch(server.url, bearer_token_file=file))

    assert failure.reason is reason
    assert "s3cr" not in str(failure)


def test_a_token_file_that_is_missing_is_named(tmp_path):
    failure = failure_of(lambda: fetch("http://127.0.0.1:9/metrics", bearer_token_file=tmp_path / "absent"))

    assert failure.reason is FailureReason.INTERNAL
    assert "absent" in failure.detail


def test_a_tls_peer_is_trusted_by_its_ca_file_only(peer, tls, certificate):
    server = peer(sends(answer()), tls=tls)

    assert fetch(server.url, deadline=5.0, ca_file=certificate) == BODY
    failure = failure_of(lambda: fetch(server.url, deadline=5.0))
    assert (failure.reason, failure.detail) == (FailureReason.TLS, "self-signed certificate")


def test_a_certificate_for_another_host_is_refused(peer, tls, certificate):
    url = peer(sends(answer()), tls=tls).url.replace("127.0.0.1", "localhost")

    assert failure_of(lambda: fetch(url, deadline=5.0, ca_file=certificate)).reason is FailureReason.TLS


def test_a_tls_body_that_is_dripped_ends_at_the_deadline(peer, tls, certificate, seconds):
    server = peer(drips(b"HTTP/1.1 200 OK\r\n\r\n", b"x"), tls=tls)
    failures = []

    took = seconds(lambda: failures.append(failure_of(lambda: fetch(server.url, ca_file=certificate))))

    assert failures[0].reason is FailureReason.TIMEOUT
    assert took < LATE


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        pytest.param(is_silent, FailureReason.TIMEOUT, id="silent"),
        pytest.param(sends(answer()), FailureReason.TLS, id="speaks-plain-http"),
        pytest.param(sends(), FailureReason.RESET, id="closes"),
    ],
)
def test_a_handshake_that_fails_gives_its_reason(peer, certificate, seconds, behave, reason):
    server = peer(behave)
    failures = []

    took = seconds(lambda: failures.append(failure_of(lambda: fetch(server.url.replace("http:", "https:"), ca_file=certificate))))

    assert failures[0].reason is reason
    assert took < LATE


def test_https_asked_of_a_port_that_speaks_http_says_so(peer, certificate):
    server = peer(sends(answer()))
    failure = failure_of(lambda: fetch(server.url.replace("http:", "https:"), ca_file=certificate))
    assert failure.detail == "this port speaks plain http, not https"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        pytest.param(b"", "(does this port speak https?)", id="closes, as uvicorn does"),
        pytest.param(b"\x15\x03\x01\x00\x02\x02\x0a", "this port speaks https, not plain http", id="TLS alert"),
        pytest.param(answer(b"", b"HTTP/1.1 400 Bad Request"), "a port that speaks https", id="nginx"),
        pytest.param(
            answer(b"", b"HTTP/1.1 404 Not Found"), "HTTP 404 Not Found: wrong path? vLLM serves its metrics at /metrics", id="404"
        ),
        pytest.param(answer(b"", b"HTTP/1.1 401 Unauthorized"), "bearer_token_file", id="401"),
    ],
)
def test_an_answer_that_usually_means_a_slip_says_which(peer, said, hint):
    failure = failure_of(lambda: fetch(peer(sends(said)).url))
    assert hint in failure.detail


def test_a_ca_file_that_cannot_be_used_is_named(tmp_path):
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("no certificate")

    for file in (nonsense, tmp_path / "absent.pem"):
        failure = failure_of(lambda file=file: fetch("https://127.0.0.1:9/metrics", ca_file=file))
        assert failure.reason is FailureReason.TLS
        assert file.name in failure.detail


def test_a_body_of_several_gzip_members_is_read_to_the_end(peer):
    body = b"# TYPE a gauge\na 1\n"
    packed = gzip.compress(body) + gzip.compress(BODY) + gzip.compress(b"")
    server = peer(sends(answer(packed, b"HTTP/1.1 200 OK", b"Content-Encoding: gzip")))
    assert fetch(server.url) == body + BODY


@pytest.mark.parametrize("label", ["x" * 64, "a..b", "\u2603" * 60], ids=["long", "empty", "idna"])
def test_a_name_that_can_be_none_is_its_own_fault(label):
    with pytest.raises(ScrapeError) as caught:
        fetch(f"http://{label}.invalid/metrics")
    assert caught.value.reason is FailureReason.DNS


def test_two_lengths_are_the_peers_fault(peer):
    server = peer(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"))
    with pytest.raises(ScrapeError) as caught:
        fetch(server.url)
    assert caught.value.reason is FailureReason.NOT_METRICS
