"""The daemon: several targets beside one another, probes, discovery; and the process, from its start to a signal."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading

import pytest
from live_process import PATIENCE, Process, eventually, get
from peers import answer, drips, is_silent, sends
from shell_fakes import FakeClock, scrape

from kvwatch.clock import SystemClock
from kvwatch.config.settings import Settings
from kvwatch.daemon.daemon import Daemon
from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason


def settings(*targets, **sections):
    named = [{"name": name, "url": f"http://{name}/metrics"} for name in targets]
    return Settings(targets=named, **{"web": {"listen_address": "127.0.0.1:0"}, **sections})


@pytest.fixture
def running():
    """Starts daemons, stops them after the test."""
    with contextlib.ExitStack() as daemons:

        def start(configured, read=None, clock=None):
            daemon = Daemon(configured, clock or SystemClock(), read)
            daemons.callback(daemon.stop)
            daemon.start()
            return daemon

        yield start


def series(text, name):
    """Samples of a family as lines, by what stands in their braces."""
    lines = (line.removeprefix(name) for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return {labels: float(value) for labels, _, value in (line.rpartition(" ") for line in lines)}


def test_every_target_is_polled_and_served(running):
    clock = SystemClock()
    daemon = running(settings("a", "b", "c", poll={"interval": "1s"}), lambda _: scrape(clock.monotonic()))
    assert eventually(daemon.ready)
    _, text = get(f"{daemon.url}/metrics")
    assert series(text, "kvwatch_target_up") == {'{target="a"}': 1.0, '{target="b"}': 1.0, '{target="c"}': 1.0}
    status = json.loads(get(f"{daemon.url}/api/v1/status")[1])
    assert [target["name"] for target in status["targets"]] == ["a", "b", "c"]


def test_a_target_that_hangs_delays_no_other(running):
    clock, released, polls = SystemClock(), threading.Event(), []

    def read(target):
        if target.name == "hung":
            released.wait(PATIENCE)
        polls.append(target.name)
        return scrape(clock.monotonic())

    daemon = running(settings("hung", "good", poll={"interval": "0.1s"}), read)
    try:
        assert eventually(lambda: polls.count("good") >= 5)
        assert "hung" not in polls
        assert daemon.healthy()
        assert not daemon.ready()
        assert get(f"{daemon.url}/-/ready")[0] == 503
        _, text = get(f"{daemon.url}/metrics")
        assert series(text, "kvwatch_target_up") == {'{target="good"}': 1.0, '{target="hung"}': 0.0}
        assert series(text, "kvwatch_tick_overruns_total")['{target="hung"}'] >= 1
        overruns = series(text, "kvwatch_tick_overruns_total")
        assert overruns['{target="good"}'] <= overruns['{target="hung"}'] / 2  # a tenth of a second is little on a busy machine
    finally:
        released.set()
    assert eventually(daemon.ready)


def test_each_target_has_its_own_history(running):
    def read(target):
        if target.name == "down":
            raise ScrapeError(FailureReason.CONNECT, "Connection refused")
        return scrape(SystemClock().monotonic())

    daemon = running(settings("down", "good", poll={"interval": "1s"}), read)
    assert eventually(daemon.ready)
    down, good = daemon.views()
    assert down.failure is not None
    assert good.failure is None
    assert down.assessments[0].verdict.engine is None
    assert good.assessments[0].verdict.engine is not None


def test_health_fails_when_the_ticks_stop_and_comes_back_with_them(running):
    """Three missed polls of 5 s and a deadline of 4 s are 19 s."""
    clock = FakeClock()
    daemon = running(settings("a", poll={"interval": "5s"}), lambda _: scrape(clock.now), clock)
    assert eventually(daemon.ready)
    clock.now += 18.9
    assert daemon.healthy()
    clock.now += 0.2
    assert not daemon.healthy()
    assert get(f"{daemon.url}/-/healthy")[0] == 503
    daemon._targets._watches["a"].tick()
    assert daemon.healthy()
    assert get(f"{daemon.url}/-/healthy") == (200, "kvwatch is Healthy.\n")


def test_series_vanish_when_the_ticks_stop(running):
    clock = FakeClock()
    daemon = running(settings("a", poll={"interval": "5s"}), lambda _: scrape(clock.now), clock)
    assert eventually(daemon.ready)
    for _ in range(4):
        clock.now += 5.0
        daemon._targets._watches["a"].tick()
    assert series(get(f"{daemon.url}/metrics")[1], "kvwatch_requests_running") == {'{engine="0",model_name="demo-8b",target="a"}': 8.0}
    clock.now += 60.0
    text = get(f"{daemon.url}/metrics")[1]
    assert series(text, "kvwatch_requests_running") == {}
    assert series(text, "kvwatch_target_up") == {'{target="a"}': 0.0}


def test_a_stopped_daemon_is_not_healthy_and_has_no_port(running):
    daemon = running(settings("a"), lambda _: scrape(SystemClock().monotonic()))
    port = int(daemon.url.rpartition(":")[2])
    daemon.stop()
    daemon.stop()
    assert not daemon.healthy()
    with pytest.raises(RuntimeError, match="not been started"):
        _ = daemon.url
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_a_daemon_that_was_not_started_has_no_url():
    with pytest.raises(RuntimeError, match="not been started"):
        _ = Daemon(settings("a"), SystemClock()).url


def write_targets(path, *names):
    path.write_text(json.dumps([{"targets": [f"{name}:8000" for name in names], "labels": {"__metrics_path__": "/metrics"}}]))


def test_targets_from_files_come_and_go_with_their_series(running, tmp_path, events):
    listed = tmp_path / "targets.json"
    write_targets(listed, "a", "b")
    daemon = running(
        Settings(discovery={"files": [str(listed)], "refresh": "0.1s"}, poll={"interval": "0.1s"}, web={"listen_address": "127.0.0.1:0"}),
        lambda _: scrape(SystemClock().monotonic()),
    )
    assert eventually(daemon.ready)
    assert eventually(lambda: len(daemon.views()) == 2)

    write_targets(listed, "b", "c")

    assert eventually(lambda: [view.url for view in daemon.views()] == ["http://b:8000/metrics", "http://c:8000/metrics"])
    assert eventually(daemon.ready)
    text = get(f"{daemon.url}/metrics")[1]
    for name in ("kvwatch_target_up", "kvwatch_target_scrapes_total", "kvwatch_state", "kvwatch_tick_overruns_total"):
        targets = {labels.split('target="')[1].split('"')[0] for labels in series(text, name)}
        assert targets == {"http://b:8000/metrics", "http://c:8000/metrics"}, name
    assert "a:8000" not in text
    removed = [event["target"] for event in events if event["event"] == "target.removed"]
    assert removed == ["http://a:8000/metrics"]


def test_a_target_file_that_breaks_keeps_its_targets_and_is_told_once(running, tmp_path, events):
    listed = tmp_path / "targets.json"
    write_targets(listed, "a")
    daemon = running(
        Settings(discovery={"files": [str(listed)], "refresh": "0.1s"}, poll={"interval": "1s"}, web={"listen_address": "127.0.0.1:0"}),
        lambda _: scrape(SystemClock().monotonic()),
    )
    assert eventually(lambda: len(daemon.views()) == 1)
    listed.write_text("[{")
    assert eventually(lambda: any(event["event"] == "discovery.failed" for event in events))
    looked = []
    daemon._targets._discovery.discover = lambda discover=daemon._targets._discovery.discover: looked.append(1) or discover()
    assert eventually(lambda: len(looked) >= 3)
    assert len([event for event in events if event["event"] == "discovery.failed"]) == 1
    assert [view.url for view in daemon.views()] == ["http://a:8000/metrics"]


def test_targets_named_in_one_file_are_looked_at_together_and_those_of_another_source_apart(running, tmp_path):
    for file, hosts in (("chat.json", "ab"), ("mail.json", "c")):
        write_targets(tmp_path / file, *hosts)
    daemon = running(
        settings("d", "e", discovery={"files": [str(tmp_path / "*.json")], "refresh": "1h"}), lambda _: scrape(SystemClock().monotonic())
    )
    assert eventually(daemon.ready)
    together = {name: [view.name for view in daemon._targets.named_with(name)] for name in sorted(view.name for view in daemon.views())}
    a, b, c = (f"http://{host}:8000/metrics" for host in "abc")
    assert together == {"d": ["e"], "e": ["d"], a: [b], b: [a], c: []}


def test_a_fault_of_the_discovery_is_told_with_its_end(running, tmp_path, events):
    listed = tmp_path / "targets.json"
    listed.write_text("[{")
    daemon = running(Settings(discovery={"files": [str(listed)], "refresh": "1h"}, web={"listen_address": "127.0.0.1:0"}))
    assert eventually(daemon.ready)
    write_targets(listed)
    for _ in range(2):
        daemon._targets.discover()
    told = [event["event"] for event in events if event["event"].startswith("discovery.")]
    assert told == ["discovery.failed", "discovery.recovered"]


def test_a_hundred_targets_that_come_and_go_leave_neither_threads_nor_jobs_nor_history_nor_series(running, tmp_path):
    daemon = running(
        Settings(
            discovery={"files": [str(tmp_path / "*.json")], "refresh": "1h"},
            poll={"interval": "0.5s"},
            web={"listen_address": "127.0.0.1:0"},
        ),
        lambda _: scrape(SystemClock().monotonic()),
    )
    assert eventually(daemon.ready)
    threads, threads_before, series_before = [], threading.active_count(), get(f"{daemon.url}/metrics")[1].count("\nkvwatch_")
    for round_number in range(6):
        write_targets(tmp_path / "targets.json", *(f"vllm-{round_number}-{number}" for number in range(100)))
        daemon._targets.discover()
        assert eventually(lambda: sum(view.at is not None for view in daemon.views()) == 100)
        threads.append(threading.active_count())
    (tmp_path / "targets.json").unlink()
    daemon._targets.discover()
    assert max(threads) <= threads_before + 100  # a thread for each target that hangs at once, and never one for a target that left
    assert daemon.views() == ()
    assert daemon._targets._schedule.names == ("\0discovery",)
    assert daemon._history.oldest() is None
    assert get(f"{daemon.url}/metrics")[1].count("\nkvwatch_") == series_before


def test_a_poll_that_ends_after_its_target_was_replaced_leaves_no_trace(running, tmp_path):
    """Of two targets with one name, one after the other, the past of the first is not that of the second."""
    asked, released = threading.Event(), threading.Event()

    def read(target):
        if target.url.startswith("http://old"):
            asked.set()
            released.wait(PATIENCE)
        return scrape(SystemClock().monotonic())

    def name(host):
        group = {"targets": [f"{host}:8000"], "labels": {"instance": "gpu-1"}}
        (tmp_path / "targets.json").write_text(json.dumps([group]))

    name("old")
    configured = Settings(
        discovery={"files": [str(tmp_path / "*.json")], "refresh": "1h"}, poll={"interval": "1h"}, web={"listen_address": "127.0.0.1:0"}
    )
    daemon = running(configured, read)
    published = []
    daemon._history.record = published.append
    assert asked.wait(PATIENCE)
    name("new")
    daemon._targets._schedule.every = lambda *_: None  # so that the new one is not polled
    daemon._targets.discover()
    before = series(get(f"{daemon.url}/metrics")[1], "kvwatch_target_scrapes_total")
    released.set()
    assert eventually(lambda: series(get(f"{daemon.url}/metrics")[1], "kvwatch_target_scrapes_total") != before)
    assert [view.url for view in daemon.views()] == ["http://new:8000/metrics"]
    assert published == []


def test_a_resolver_that_hangs_holds_up_neither_the_start_nor_other_targets(running, monkeypatch):
    released = threading.Event()
    configured = Settings(
        targets=["dns+http://vllm.invalid:8000/metrics", "http://fixed:8000/metrics"],
        poll={"interval": "1s"},
        web={"listen_address": "127.0.0.1:0"},
    )
    monkeypatch.setattr("kvwatch.daemon.targets.Discovery.discover", lambda _: released.wait(PATIENCE))
    daemon = running(configured, lambda _: scrape(SystemClock().monotonic()))
    try:
        assert eventually(lambda: [view.at is not None for view in daemon.views()] == [True])
        assert not daemon.ready()
    finally:
        daemon.stop()
        released.set()


def test_the_first_target_after_hours_of_none_does_not_find_the_daemon_unhealthy(running, tmp_path):
    clock = FakeClock()
    configured = Settings(discovery={"files": [str(tmp_path / "*.json")]}, web={"listen_address": "127.0.0.1:0"})
    daemon = running(configured, lambda _: scrape(clock.now), clock)
    assert eventually(daemon.ready)
    clock.now += 7200.0
    assert daemon.healthy()
    daemon._targets._schedule.every = lambda *_: None  # so that the first poll does not come by itself
    write_targets(tmp_path / "targets.json", "a")
    daemon._targets.discover()
    assert daemon.healthy()
    clock.now += 20.0
    assert not daemon.healthy()


# The process.


@pytest.fixture
def process():
    with contextlib.ExitStack() as processes:

        def start(*arguments, **options):
            started = Process(*arguments, **options)
            processes.callback(started.close)
            return started

        yield start


def quickest(attempt):
    """The best of three: a machine that is busy otherwise may lose a second anywhere."""
    took = attempt()
    for _ in range(2):
        if took >= 1.0:
            took = min(took, attempt())
    return took


@pytest.mark.parametrize("received", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
@pytest.mark.parametrize(
    "behave",
    [
        pytest.param(sends(answer()), id="target-answers"),
        pytest.param(is_silent, id="target-hangs"),
        pytest.param(drips(b"HTTP/1.1 200 OK\r\n\r\n", b"x"), id="target-drips"),
    ],
)
def test_a_signal_ends_it_within_a_second(process, peer, received, behave):
    server = peer(behave)

    def attempt():
        daemon, before = process(server.url), len(server.requests)
        started = daemon.event("kvwatch.started")
        assert eventually(lambda: len(server.requests) > before)
        assert get(f"{started['url']}/-/healthy")[0] == 200
        took, code = daemon.end(received)
        assert code == 0
        assert json.loads(daemon.process.stderr.read().splitlines()[-1])["event"] == "kvwatch.stopping"
        return took

    assert quickest(attempt) < 1.0


def test_a_signal_ends_it_within_a_second_while_a_scraper_is_silent(process, peer):
    def attempt():
        daemon = process(peer(is_silent).url)
        host, port = daemon.event("kvwatch.started")["url"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as silent, socket.create_connection((host, int(port))) as half:
            half.sendall(b"GET /metrics HT")
            took, code = daemon.end(signal.SIGTERM)
            assert silent.fileno() > 0
        assert code == 0
        return took

    assert quickest(attempt) < 1.0


def test_a_signal_ends_it_within_a_second_while_a_page_is_drawn(process, peer):
    slow = """
import sys, time
from kvwatch.exporter.web.page import StatusPage
StatusPage.render = lambda *_: (sys.stderr.write("drawing\\n"), time.sleep(30))
"""

    def attempt():
        daemon = process(peer(sends(answer())).url, before=slow)
        host, port = daemon.event("kvwatch.started")["url"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as reader:
            reader.sendall(b"GET / HTTP/1.1\r\nHost: kvwatch\r\n\r\n")
            assert any(line == "drawing\n" for line in daemon.process.stderr)
            took, code = daemon.end(signal.SIGTERM)
        assert code == 0
        return took

    assert quickest(attempt) < 1.0


def test_a_signal_ends_it_within_a_second_while_names_are_resolved(process):
    hanging = """
import sys, time
from kvwatch.poller.discovery import Discovery
Discovery.discover = lambda *_: (sys.stderr.write("resolving\\n"), time.sleep(30))
"""

    def attempt():
        daemon = process("dns+http://vllm.invalid:8000/metrics", before=hanging)
        assert any(line == "resolving\n" for line in daemon.process.stderr)
        took, code = daemon.end(signal.SIGTERM)
        assert code == 0
        return took

    assert quickest(attempt) < 1.0


def test_a_port_that_is_taken_ends_it_with_one_line(process):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = process(f"--web.listen-address={address}")
        out, err = daemon.process.communicate(timeout=PATIENCE)
    assert daemon.process.returncode == 2
    assert (out, err) == ("", f"kvwatch: web.listen_address {address}: Address already in use\n")


def test_vllm_metrics_directory_is_left_alone(process, peer, tmp_path):
    server = peer(sends(answer()))
    daemon = process(server.url, env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)})
    started = daemon.event("kvwatch.started")
    assert eventually(lambda: get(f"{started['url']}/-/ready")[0] == 200)
    text = get(f"{started['url']}/metrics")[1]
    assert "process_resident_memory_bytes" in text
    assert list(tmp_path.iterdir()) == []
    assert daemon.lines[0] == (
        "kvwatch: PROMETHEUS_MULTIPROC_DIR is set and ignored: it belongs to vLLM, whose metrics kvwatch must not write into\n"
    )
    assert daemon.end(signal.SIGTERM)[1] == 0
