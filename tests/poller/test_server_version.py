"""``/version`` is asked once for each process of a server, and no poll waits for it."""

from __future__ import annotations

import pytest

from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason
from kvwatch.poller.version import ServerVersion, server_version

URL = "http://demo:8000/metrics"


class Server:
    """Answers when it is told to: what was started waits in `started`."""

    def __init__(self, *versions):
        self.versions = list(versions)
        self.asked, self.started = [], []

    def fetch(self, url):
        self.asked.append(url)
        version = self.versions.pop(0)
        if version is None:
            raise ScrapeError(FailureReason.TIMEOUT, "too slow")
        return f'{{"version": "{version}"}}'.encode()

    def answer(self):
        while self.started:
            self.started.pop(0)()


def asking(server):
    return ServerVersion(URL, server.fetch, server.started.append)


def test_no_poll_waits_for_it_and_it_is_asked_once():
    server = Server("0.32.0")
    version = asking(server)
    assert (version.of(100.0), server.asked) == (None, [])
    server.answer()
    assert [version.of(100.0) for _ in range(3)] == ["0.32.0"] * 3
    server.answer()
    assert server.asked == ["http://demo:8000/version"]


def test_a_process_that_has_started_since_is_asked_anew_and_has_none_until_it_answers():
    server = Server("0.32.0", "0.34.0")
    version = asking(server)
    version.of(100.0)
    server.answer()
    assert version.of(500.0) is None
    server.answer()
    assert version.of(500.0) == "0.34.0"


def test_an_answer_that_comes_late_is_not_the_next_process_s():
    server = Server("0.34.0", "0.32.0")
    version = asking(server)
    version.of(100.0)
    version.of(500.0)
    slow, quick = server.started
    quick()
    slow()
    assert version.of(500.0) == "0.34.0"


def test_a_server_that_does_not_answer_is_not_asked_again():
    server = Server(None)
    version = asking(server)
    version.of(100.0)
    server.answer()
    assert (version.of(100.0), len(server.started)) == (None, 0)


def test_a_page_that_names_no_start_is_one_process():
    server = Server("0.15.1")
    version = asking(server)
    version.of(None)
    server.answer()
    assert (version.of(None), len(server.started)) == ("0.15.1", 0)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://demo:8000/metrics", "http://demo:8000/version"),
        ("https://demo/llm/metrics/", "https://demo/llm/version"),
        ("http://demo:8000/metrics?name=x", "http://demo:8000/version"),
    ],
)
def test_it_is_asked_beside_the_metrics(url, asked):
    server = Server("0.32.0")
    assert (server_version(url, server.fetch), server.asked) == ("0.32.0", [asked])
