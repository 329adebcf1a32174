"""Everything a target may do wrong, all at once, through the whole daemon.

One daemon watches a server for each fault, and one that is well. Each fault has its reason in the counter, in the cause of
the state and in the log; the daemon lives, and the good target goes on.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import urllib.request
from dataclasses import dataclass

import pytest
import structlog
from peers import Peer, answer, drips, is_silent, resets, sends, sends_without_end

from kvwatch.clock import SystemClock
from kvwatch.config.settings import Settings
from kvwatch.daemon.daemon import Daemon
from kvwatch.model import Cause, FailureReason, State

INTERVAL = DEADLINE = 1.5
"""Longer than a busy machine needs for any of the answers."""
POLLS = 6
"""Of every target, before anything is looked at."""
PATIENCE = 60.0
LATE = {FailureReason.TIMEOUT}
"""What any peer may be for a moment on a machine that is busy otherwise."""


def exposition(*lines, engine="0", model="demo-8b", running=3.0, waiting=0.0, usage="0.5", tokens=1000.0):
    """A body of an engine, and more lines."""
    labels = f'engine="{engine}",model_name="{model}"'
    return "\n".join(
        [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{labels}}} {running}",
            f"vllm:num_requests_waiting{{{labels}}} {waiting}",
            f"vllm:kv_cache_usage_perc{{{labels}}} {usage}",
            f"vllm:num_preemptions_total{{{labels}}} 0.0",
            f"vllm:generation_tokens_total{{{labels}}} {tokens}",
            f"vllm:prompt_tokens_total{{{labels}}} {tokens}",
            *lines,
            "",
        ]
    ).encode()


class Turns:
    """Behaves as a vLLM whose body depends on how often it was asked."""

    def __init__(self, body):
        self._body = body
        self.asked = 0

    def __call__(self, connection, _stopped):
        body = self._body(self.asked)
        self.asked += 1
        connection.sendall(answer(body))


def good(turn):
    return exposition(tokens=1000.0 + 100.0 * turn)


def unavailable_then_back(turn):
    return good(turn) if turn not in (2, 3) else b""


@dataclass(frozen=True)
class Fault:
    """What a server does, and what is said of it."""

    behave: object
    reason: FailureReason
    cause: Cause = Cause.UNREACHABLE
    scheme: str = "http"


HTML = b"<!DOCTYPE html><html><body>Sign in</body></html>"
BOMB = gzip.compress(bytes(40_000_000))
FAULTS = {
    "body-empty": Fault(sends(answer(b"")), FailureReason.EMPTY, Cause.NO_VLLM_METRICS),
    "body-blank": Fault(sends(answer(b"\n\n")), FailureReason.EMPTY, Cause.NO_VLLM_METRICS),
    "html": Fault(sends(answer(HTML)), FailureReason.NOT_METRICS, Cause.NO_VLLM_METRICS),
    "json": Fault(sends(answer(b'{"status": "ok"}')), FailureReason.NOT_METRICS, Cause.NO_VLLM_METRICS),
    "truncated": Fault(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", exposition()), FailureReason.RESET),
    "truncated-in-a-line": Fault(sends(answer(exposition()[:-8] + b'\nvllm:num_requests_running{engine="0')), FailureReason.PARSE),
    "not-utf-8": Fault(sends(answer(exposition() + b'x{a="\xff"} 1\n')), FailureReason.ENCODING),
    "100-MB-announced": Fault(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"), FailureReason.TOO_LARGE),
    "without-end": Fault(sends_without_end, FailureReason.TOO_LARGE),
    "gzip-bomb": Fault(sends(answer(BOMB, b"HTTP/1.1 200 OK", b"Content-Encoding: gzip")), FailureReason.TOO_LARGE),
    "dripped": Fault(drips(b"HTTP/1.1 200 OK\r\n\r\n", b"x"), FailureReason.TIMEOUT),
    "header-dripped": Fault(drips(b"HTTP/1.1 200 OK\r\nX: ", b"x"), FailureReason.TIMEOUT),
    "500": Fault(sends(answer(b"oops", b"HTTP/1.1 500 Internal Server Error")), FailureReason.HTTP_STATUS),
    "redirect": Fault(sends(answer(b"", b"HTTP/1.1 302 Found", b"Location: http://169.254.169.254/")), FailureReason.REDIRECT),
    "refused": Fault(None, FailureReason.CONNECT),
    "reset": Fault(resets, FailureReason.RESET),
    "no-such-name": Fault("http://nobody.invalid:8000/metrics", FailureReason.DNS),
    "hang": Fault(is_silent, FailureReason.TIMEOUT),
    "tls-to-a-plain-port": Fault(sends(answer()), FailureReason.TLS, scheme="https"),
    "not-http": Fault(sends(b"SSH-2.0-OpenSSH_9.2\r\n"), FailureReason.NOT_METRICS, Cause.NO_VLLM_METRICS),
    "stats-disabled": Fault(
        sends(answer(b'python_info{version="3.12"} 1.0\nprocess_start_time_seconds 1.7e9\n')),
        FailureReason.STATS_DISABLED,
        Cause.STATS_DISABLED,
    ),
    "another-exporter": Fault(sends(answer(b"node_load1 0.5\nnode_load5 0.4\n")), FailureReason.NO_VLLM_METRICS, Cause.NO_VLLM_METRICS),
}
ODD_BUT_READ = {
    "usage-nan": exposition(usage="NaN"),
    "usage-infinite": exposition(usage="+Inf"),
    "usage-minus-infinite": exposition(usage="-Inf"),
    "usage-negative": exposition(usage="-0.5"),
    "usage-above-1": exposition(usage="1.7"),
    "running-nan": exposition(running="NaN"),
    "duplicate-series": exposition('vllm:num_requests_running{engine="0",model_name="demo-8b"} 4.0'),
    "label-with-quotes": exposition(model=r"a \"quoted\" name"),
    "label-with-commas": exposition(model="a,b={c},d"),
    "label-with-newline": exposition(model=r"two\nlines"),
    "ten-thousand-families": exposition(*(f'vllm:unknown_{n}{{engine="0",model_name="demo-8b"}} {n}' for n in range(10_000))),
}
CHANGING = {
    "good": good,
    "counters-go-back": lambda turn: exposition(tokens=1000.0 if turn % 2 else 5.0),
    "engine-vanishes": lambda turn: good(turn) + exposition(engine="1") if turn < 3 else good(turn),
    "engine-comes-back": lambda turn: good(turn) + exposition(engine="1", tokens=10.0 * turn) if turn not in (2, 3) else good(turn),
    "engine-appears": lambda turn: good(turn) + exposition(engine="1", tokens=10.0 * turn) if turn > 2 else good(turn),
    "model-renamed": lambda turn: (
        exposition("process_start_time_seconds 1700000000", tokens=1000.0 + turn)
        if turn < 3
        else exposition("process_start_time_seconds 1700000900", model="demo-8b-v2", tokens=float(turn))
    ),
    "body-empty-for-a-while": unavailable_then_back,
}


@dataclass(frozen=True)
class Found:
    """What the daemon said after some polls of everything."""

    views: dict
    metrics: str
    status: dict
    events: list
    healthy: bool

    def verdicts(self, target):
        """State, cause, evidence by model name and engine."""
        return {
            (a.verdict.engine.model_name, a.verdict.engine.engine) if a.verdict.engine else None: a.verdict
            for a in self.views[target].assessments
        }

    def sample(self, name, **labels):
        """The value of a series that has these labels among others; ``None`` without one."""
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        for line in self.metrics.splitlines():
            if line.startswith(f"{name}{{") and wanted <= set(line[len(name) + 1 : line.rindex("}")].split(",")):
                return float(line.rpartition(" ")[2])
        return None


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def found():
    with contextlib.ExitStack() as stack:
        urls = {}
        for name, fault in FAULTS.items():
            if isinstance(fault.behave, str):
                urls[name] = fault.behave
            elif fault.behave is None:
                urls[name] = f"http://127.0.0.1:{closed_port()}/metrics"
            else:
                peer = Peer(fault.behave, read_request=fault.scheme == "http")
                stack.callback(peer.close)
                urls[name] = peer.url.replace("http:", f"{fault.scheme}:")
        behaviours = {name: sends(answer(body)) for name, body in ODD_BUT_READ.items()}
        behaviours |= {name: Turns(body) for name, body in CHANGING.items()}
        for name, behave in behaviours.items():
            peer = Peer(behave)
            stack.callback(peer.close)
            urls[name] = peer.url
        settings = Settings(
            targets=[{"name": name, "url": url} for name, url in urls.items()],
            poll={"interval": INTERVAL, "timeout": DEADLINE, "max_body_bytes": 2_000_000},
            web={"listen_address": "127.0.0.1:0"},
        )
        events = stack.enter_context(structlog.testing.capture_logs())
        daemon = Daemon(settings, SystemClock())
        stack.callback(daemon.stop)
        daemon.start()
        _wait_for_polls(daemon, urls)
        views = {view.name: view for view in daemon.views()}
        with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=PATIENCE) as response:
            metrics = response.read().decode()
        with urllib.request.urlopen(f"{daemon.url}/api/v1/status", timeout=PATIENCE) as response:
            status = json.load(response)
        yield Found(views, metrics, status, list(events), daemon.healthy())


def _wait_for_polls(daemon, names):
    clock, idle = SystemClock(), threading.Event()
    until = clock.monotonic() + PATIENCE
    registry = daemon._telemetry.registry
    missing = set(names)
    while missing:
        assert clock.monotonic() < until, f"not polled often enough: {missing}"
        idle.wait(0.1)
        missing = {n for n in missing if registry.get_sample_value("kvwatch_target_scrapes_total", {"target": n}) < POLLS}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_reason_in_the_counter_the_cause_and_the_log(found, name):
    fault = FAULTS[name]
    view = found.views[name]
    assert view.failure is not None
    assert view.failure.reason is fault.reason
    assert "\n" not in view.failure.detail
    assert len(view.failure.detail) < 300
    assert found.sample("kvwatch_target_scrape_failures_total", target=name, reason=fault.reason.value) >= POLLS - 1
    assert found.sample("kvwatch_target_up", target=name) == 0.0
    verdict = found.verdicts(name)[None]
    assert (verdict.state, verdict.cause) == (State.UNKNOWN, fault.cause)
    assert verdict.evidence[0].startswith(f"{fault.reason}: ")
    told = [e for e in found.events if e["event"] == "target.failed" and e["target"] == name]
    assert {e["log_level"] for e in told} == {"warning"}
    assert {e["reason"] for e in told} - LATE == {fault.reason.value} - LATE


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_no_other_reason(found, name):
    others = [reason for reason in FailureReason if reason not in {FAULTS[name].reason, *LATE}]
    counted = {reason: found.sample("kvwatch_target_scrape_failures_total", target=name, reason=reason.value) for reason in others}
    assert set(counted.values()) == {0.0}


@pytest.mark.parametrize("name", ODD_BUT_READ)
def test_odd_numbers_and_labels_are_read(found, name):
    view = found.views[name]
    assert view.failure is None
    assert found.sample("kvwatch_target_up", target=name) == 1.0
    assert len(view.assessments) == 1
    assert found.sample("kvwatch_target_scrape_failures_total", target=name, reason="internal") == 0.0


@pytest.mark.parametrize(
    ("name", "model_name"),
    [("label-with-quotes", 'a "quoted" name'), ("label-with-commas", "a,b={c},d"), ("label-with-newline", "two\nlines")],
)
def test_a_label_comes_out_as_it_went_in(found, name, model_name):
    assert list(found.verdicts(name)) == [(model_name, "0")]
    target = next(target for target in found.status["targets"] if target["name"] == name)
    assert target["engines"][0]["model_name"] == model_name


def test_counters_that_go_back_at_every_other_poll_are_no_failure_and_no_verdict(found):
    assert found.views["counters-go-back"].failure is None
    assert found.verdicts("counters-go-back")["demo-8b", "0"].state is State.UNKNOWN


def test_the_good_target_goes_on(found):
    view = found.views["good"]
    assert view.failure is None
    assert found.sample("kvwatch_target_scrapes_total", target="good") >= POLLS
    assert found.sample("kvwatch_tick_overruns_total", target="good") == 0.0
    assert found.sample("kvwatch_target_up", target="good") == 1.0


def test_the_daemon_lives_and_nothing_of_ours_broke(found):
    assert found.healthy
    broken = [event for event in found.events if event["event"] in {"scrape.broke", "judge.broke", "http.request_failed"}]
    assert broken == []


def test_an_engine_that_vanished_is_stale(found):
    verdicts = found.verdicts("engine-vanishes")
    assert verdicts["demo-8b", "0"].cause is not Cause.STALE
    assert (verdicts["demo-8b", "1"].state, verdicts["demo-8b", "1"].cause) == (State.UNKNOWN, Cause.STALE)


@pytest.mark.parametrize("name", ["engine-appears", "engine-comes-back"])
def test_an_engine_that_is_there_is_watched_since_it_is(found, name):
    verdicts = found.verdicts(name)
    assert set(verdicts) == {("demo-8b", "0"), ("demo-8b", "1")}
    assert verdicts["demo-8b", "1"].cause is not Cause.STALE


def test_a_model_renamed_at_a_restart_leaves_nothing_of_the_old_name(found):
    assert set(found.verdicts("model-renamed")) == {("demo-8b-v2", "0")}
    assert found.sample("kvwatch_state", target="model-renamed", model_name="demo-8b") is None


def test_an_outage_in_between_is_told_with_its_end(found):
    told = [e["event"] for e in found.events if e.get("target") == "body-empty-for-a-while" and e["log_level"] != "debug"]
    assert [event for event in told if event.startswith("target.")] == ["target.added", "target.failed", "target.recovered"]
    assert found.sample("kvwatch_target_scrape_failures_total", target="body-empty-for-a-while", reason="empty") == 2.0
