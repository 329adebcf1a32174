"""What must page, and what must not: a live kvwatch whose polls really get lost, a real Prometheus and a real Alertmanager.

kvwatch's clock, the stand-ins for vLLM, the rules and Prometheus' intervals all run so many times as fast, so six and a half minutes take
half a minute. Every time in here is in those faster seconds.
"""

from __future__ import annotations

import random
import re
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest
import yaml
from e2e_stack import CLOCK, PATIENCE, RULES, Program, Webhook, alertmanager, get, wait_for
from e2e_targets import Phase, Timeline, scripted, serving
from peers import free_port
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.e2e

LOOK_EVERY: Final = 2.0
POLL: Final = 5.0
AT: Final = 60.0
"""When a trouble begins that has a beginning."""

FASTER: Final = """
import datetime, threading, time
from apscheduler.executors import base as executors
from apscheduler.schedulers import base as schedulers
from kvwatch.advice import remembered
from kvwatch.clock import SystemClock

started, wait = time.time(), threading.Event.wait
SystemClock.monotonic = lambda self: time.monotonic() * SPEED
SystemClock.unix = lambda self: started + (time.time() - started) * SPEED
class Faster(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(SystemClock().unix(), tz)
executors.datetime = schedulers.datetime = Faster
threading.Event.wait = lambda self, timeout=None: wait(self, None if timeout is None else timeout / SPEED)

advise = remembered.advise
def breaks(verdict, *rest):
    if verdict.engine is not None and verdict.engine.model_name == "breaks" and verdict.engine.engine == "0":
        raise ZeroDivisionError("an error of kvwatch's own")
    return advise(verdict, *rest)
remembered.advise = breaks

import sys
import threading
from kvwatch.commands.cli import main
sys.exit(main())
"""
"""kvwatch with a clock `SPEED` times as fast, and with advice that fails for one engine of one model."""

CALM: Final = Phase(1e9, running=4, finished=1)
STORM: Final = Phase(1e9, running=9, waiting=20, kv_usage=0.99, finished=1, preempted=1)
HUNG: Final = Phase(1e9, running=4, tokens=0)


def lasting(phase: Phase, seconds: float) -> Phase:
    return Phase(seconds, phase.running, phase.waiting, phase.kv_usage, phase.finished, phase.preempted, phase.tokens)


def losing(timeline: Timeline, share: float) -> Timeline:
    chance = random.Random(3)  # noqa: S311 - noise, not a secret
    return lambda at: None if chance.random() < share else timeline(at)


def answering(timeline: Timeline, when: Callable[[float], bool]) -> Timeline:
    return lambda at: timeline(at) if when(at) else None


def with_lines(timeline: Timeline, *lines: Callable[[float], str]) -> Timeline:
    def body(at: float) -> bytes:
        return (timeline(at) or b"") + "".join(f"{line(at)}\n" for line in lines).encode()

    return body


def process(timeline: Timeline, age: float) -> Timeline:
    """Of a process that started so long before the test."""
    started = CLOCK.unix() - age
    return with_lines(timeline, lambda _at: f"process_start_time_seconds {started}")


def two(first: Timeline, second: Timeline, model_name: str = "demo-8b", *, second_until: float = 1e9) -> Timeline:
    """Two engines on one page, the second one up to a time."""

    def body(at: float) -> bytes:
        parts = [first(at) or b""]
        if at < second_until:
            parts.append((second(at) or b"").replace(b'engine="0"', b'engine="1"'))
        lines = b"".join(parts).replace(b'model_name="demo-8b"', f'model_name="{model_name}"'.encode()).splitlines(keepends=True)
        kinds = sorted({line for line in lines if line.startswith(b"#")})
        families = {kind.split()[2]: kind for kind in kinds}
        samples = [line for line in lines if not line.startswith(b"#")]
        return b"".join(
            b"".join([kind, *(s for s in samples if re.match(name + rb"(_bucket|_count|_sum)?{", s))]) for name, kind in families.items()
        )

    return body


def older_answers() -> Timeline:
    """Another process, which is older and has counted more, answers once at 100 s, and from 200 s on for good."""
    newer, older = process(scripted(CALM), 50_000.0), process(scripted(Phase(1e9, 4, finished=1, preempted=0.01)), 100_000.0)
    return lambda at: older(at + 400_000.0) if 100.0 <= at < 100.0 + POLL or at >= 200.0 else newer(at)


VLLMS: Final[dict[str, Timeline]] = {
    "lossy": losing(scripted(STORM), 0.25),
    "older": older_answers(),
    "few-long": scripted(Phase(1e9, running=3, kv_usage=0.97, finished=0.02, preempted=0.045)),
    "rank": two(scripted(CALM), scripted(CALM), second_until=AT),
    "hung": scripted(lasting(CALM, AT), HUNG),
    "hung-retried": with_lines(
        scripted(lasting(CALM, AT), HUNG),
        lambda at: f'http_requests_total{{handler="/v1/completions",method="POST",status="2xx"}} {int(at)}',
    ),
    "hung-lossy": losing(scripted(lasting(CALM, AT), HUNG), 0.25),
    "dip": answering(
        scripted(lasting(STORM, 120.0), Phase(20.0, running=9, waiting=20, kv_usage=0.99, finished=1), STORM),
        lambda at: not 125.0 <= at < 140.0,
    ),
    "html": lambda _at: b"<!doctype html><title>Welcome</title>",
    "empty": lambda _at: b"",
    "advice": two(scripted(STORM), scripted(STORM), "breaks"),
    "gaps": answering(scripted(lasting(CALM, 60.0), lasting(HUNG, 170.0), CALM), lambda at: at % 17.0 < 5.5),
}

LONG: Final[dict[str, Timeline]] = {"high-lossy": losing(scripted(Phase(1e9, running=8, kv_usage=0.95, finished=1)), 0.25)}

Key = tuple[str, str, str]
"""Target, engine and alert."""


@dataclass
class Seen:
    """What was seen from outside, by the time since the start."""

    alerts: list[tuple[float, dict[Key, bool]]] = field(default_factory=list)
    states: list[dict[tuple[str, str], str]] = field(default_factory=list)
    by_prometheus: set[Key] = field(default_factory=set)
    advice_faults: float = 0.0
    pages: list[dict[str, Any]] = field(default_factory=list)
    runbook: str = ""
    url: str = ""

    def of(self, target: str) -> set[tuple[str, str]]:
        """Engine and name of whatever fired for a target."""
        return {(engine, name) for of, engine, name in self.fired() if of == target}

    def fired(self) -> set[Key]:
        """Whatever fired at any time."""
        return {key for _, alerts in self.alerts for key, fires in alerts.items() if fires}

    def times(self, *key: str) -> list[tuple[float, float]]:
        """Begin and end of each firing of a target's engine's alert; infinity where it had not ended. What is not there has not ended."""
        found: list[tuple[float, float]] = []
        for at, alerts in self.alerts:
            fires, goes_on = alerts.get((key[0], key[1], key[2])), bool(found) and found[-1][1] == float("inf")
            if fires and not goes_on:
                found.append((at, float("inf")))
            elif fires is False and goes_on:
                found[-1] = (found[-1][0], at)
        return found


def look(url: str, at: float, seen: Seen) -> None:
    alerts: dict[Key, bool] = {}
    states: dict[tuple[str, str], str] = {}
    for family in text_string_to_metric_families(get(f"{url}/metrics")):
        for name, labels, value, *_ in family.samples:
            if name == "kvwatch_alert_active":
                alerts[labels["target"], labels.get("engine", ""), labels["alert"]] = bool(value)
            elif name == "kvwatch_state" and value:
                states[labels["target"], labels["engine"]] = labels["state"]
            elif name == "kvwatch_engine_faults_total":
                seen.advice_faults = max(seen.advice_faults, value)
    seen.alerts.append((at, alerts))
    seen.states.append(states)


def faster_rules(speed: float) -> str:
    """The rule file with every duration divided by *speed*."""

    def divided(found: re.Match[str]) -> str:
        return f"{int(found[1]) * {'s': 1000, 'm': 60_000}[found[2]] / speed:.0f}ms"

    return re.sub(r"(?<=[\[: ])(\d+)([sm])(?=[\]:\n])", divided, RULES.read_text())


def fast(timeline: Timeline, speed: float) -> Timeline:
    """Nothing answers before the test begins."""
    return lambda at: timeline(at * speed) if at >= 0 else None


def start_prometheus(
    require_tool: Callable[[str], Path], folder: Path, kvwatch: str, alertmanager_url: str, speed: float
) -> tuple[Program, str]:
    rules, config, url = folder / "rules.yaml", folder / "prometheus.yaml", f"http://127.0.0.1:{free_port()}"
    rules.write_text(faster_rules(speed))
    every = f"{15_000 / speed:.0f}ms"
    labels = {"namespace": "watch", "pod": "kvwatch-0"}
    settings = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(rules)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}]},
        "scrape_configs": [{"job_name": "kvwatch", "static_configs": [{"targets": [kvwatch.removeprefix("http://")], "labels": labels}]}],
    }
    config.write_text(yaml.safe_dump(settings))
    command = [
        require_tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={url.removeprefix('http://')}", "--log.level=warn",
    ]  # fmt: skip
    return Program("prometheus", command, folder, f"{url}/-/ready"), url


def key_of(labels: dict[str, str]) -> Key:
    return labels.get("target", ""), labels.get("engine", ""), labels["alertname"].removeprefix("KVWatch")


def firing(prometheus: str) -> frozenset[Key]:
    query = urlencode({"query": 'ALERTS{alertstate="firing"}'})
    found = (one["metric"] for one in get(f"{prometheus}/api/v1/query?{query}")["data"]["result"])
    return frozenset(key_of(one) for one in found)


@pytest.fixture(scope="module")
def seen(require_tool: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Longer than any `for` that is tested here, and its hold."""
    return watched(require_tool, tmp_path_factory.mktemp("faults"), VLLMS, lasts=410.0, speed=15.0)


@pytest.fixture(scope="module")
def seen_long(require_tool: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One target for a quarter of an hour and more."""
    return watched(require_tool, tmp_path_factory.mktemp("long"), LONG, lasts=1200.0, speed=40.0)


def watched(require_tool: Callable[[str], Path], folder: Path, vllms: Mapping[str, Timeline], *, lasts: float, speed: float) -> Seen:
    """What kvwatch, Prometheus and Alertmanager say of those targets."""
    found, webhook = Seen(), Webhook()
    url = f"http://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        stack.callback(webhook.close)
        program, alertmanager_url = alertmanager(
            require_tool, folder, webhook, "prometheus", change=lambda text: re.sub("group_(wait|interval): .*", r"group_\1: 1s", text)
        )
        stack.callback(program.stop)
        program, prometheus = start_prometheus(require_tool, folder, url, alertmanager_url, speed)
        stack.callback(program.stop)
        targets = stack.enter_context(serving(**{name: fast(timeline, speed) for name, timeline in vllms.items()}))
        targets.started = float("inf")
        settings = {
            "targets": [{"name": name, "url": targets.url(name)} for name in vllms],
            "poll": {"interval": f"{POLL:.0f}s", "timeout": f"{POLL:.0f}s"},
            "web": {"listen_address": url.removeprefix("http://")},
            "log": {"level": "error"},
        }
        (folder / "kvwatch.yaml").write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-c", f"SPEED = {speed}\n{FASTER}", "run", "--config.file", folder / "kvwatch.yaml"]
        stack.callback(Program("kvwatch", command, folder, f"{url}/-/healthy").stop)
        wait_for("a poll of each", lambda: get(f"{url}/metrics").count("\nkvwatch_target_scrape_duration_seconds{") == len(vllms), PATIENCE)

        targets.started = CLOCK.monotonic()
        while (at := (CLOCK.monotonic() - targets.started) * speed) < lasts:
            look(url, at, found)
            found.by_prometheus |= firing(prometheus)
            threading.Event().wait(LOOK_EVERY / speed)
        found.pages = [{**alert, "receiver": one.receiver} for one in webhook.arrivals for alert in one.alerts]
        found.runbook = get(f"{url}/runbook")
        found.url = url
    return found


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param("lossy", {("0", "PreemptionStorm"), ("0", "KVBound")}, id="one poll in four is lost"),
        pytest.param("older", set(), id="an older process answers once, then for good"),
        pytest.param("few-long", {("0", "PreemptionStorm"), ("0", "KVBound")}, id="few long requests, five preempted in two minutes"),
        pytest.param("rank", {("1", "WatcherBlind")}, id="one of two ranks is gone"),
        pytest.param("hung", {("0", "EngineStalled")}, id="hung, clients wait or leave"),
        pytest.param("hung-retried", {("0", "EngineStalled")}, id="hung, clients try again"),
        pytest.param("hung-lossy", {("0", "EngineStalled")}, id="hung, and one poll in four is lost"),
        pytest.param("dip", {("0", "PreemptionStorm"), ("0", "KVBound")}, id="a storm that dips and loses three polls"),
        pytest.param("html", {("", "WatcherBlind")}, id="a page that is no metrics"),
        pytest.param("empty", {("", "WatcherBlind")}, id="an empty page"),
        pytest.param(
            "advice",
            {(engine, name) for engine in "01" for name in ("PreemptionStorm", "KVBound")},
            id="advice for one of two engines fails",
        ),
        pytest.param("gaps", {("0", "EngineStalled")}, id="frozen, with gaps between the answers"),
    ],
)
def test_this_fires_and_nothing_else_and_each_once(seen: Seen, target: str, expected: set[tuple[str, str]]) -> None:
    assert seen.of(target) == expected
    assert {len(seen.times(target, engine, name)) for engine, name in expected} <= {1}


@pytest.mark.parametrize("target", ["hung", "hung-retried", "hung-lossy"])
def test_a_hung_engine_is_paged_within_ninety_seconds(seen: Seen, target: str) -> None:
    ((begin, _),) = seen.times(target, "0", "EngineStalled")
    assert AT < begin <= AT + 90.0 + POLL + LOOK_EVERY


def test_a_cache_that_is_nearly_full_for_a_quarter_of_an_hour_asks_for_a_replica_though_one_poll_in_four_is_lost(seen_long: Seen) -> None:
    ((begin, end),) = seen_long.times("high-lossy", "0", "KVScaleOut")
    assert 900.0 <= begin <= 1000.0  # two seconds of the real clock for a busy machine; a wait that began anew would end later
    assert end == float("inf")
    assert seen_long.fired() == seen_long.by_prometheus == {("high-lossy", "0", "KVScaleOut")}
    assert [(key_of(page["labels"]), page["status"]) for page in seen_long.pages] == [(("high-lossy", "0", "KVScaleOut"), "firing")]


def test_no_storm_stands_beside_a_state_that_says_something_else(seen: Seen) -> None:
    for (_, alerts), states in zip(seen.alerts, seen.states, strict=True):
        for (target, engine, name), fires in alerts.items():
            assert not fires or name != "PreemptionStorm" or states[target, engine] in ("kv_bound", "unknown")


def test_advice_that_fails_is_counted_and_its_target_keeps_its_engines(seen: Seen) -> None:
    assert seen.advice_faults > 0
    known = [{engine for target, engine in states if target == "advice"} >= {"0", "1"} for states in seen.states]
    assert all(known[known.index(True) :])


def test_both_roads_fire_the_same(seen: Seen) -> None:
    assert seen.by_prometheus == seen.fired()


def test_every_alert_is_told_once_and_none_that_goes_on_is_resolved(seen: Seen) -> None:
    pages = ("PreemptionStorm", "EngineStalled")
    told, ended = ({key_of(one["labels"]) for one in seen.pages if one["status"] == status} for status in ("firing", "resolved"))
    expected = {(target, engine, name) for target in VLLMS for engine, name in seen.of(target) if name in pages}
    assert {one for one in told if one[2] in pages} == expected
    assert ended <= {("gaps", "0", "EngineStalled")}


def test_a_text_never_names_the_pod_of_kvwatch_and_links_to_its_page_and_runbook(seen: Seen) -> None:
    assert seen.pages
    for page in seen.pages:
        assert "kvwatch-0" not in " ".join(page["annotations"].values())
        assert page["annotations"]["status_url"] == f"{seen.url}/"
        address, anchor = page["annotations"]["runbook_url"].split("#")
        assert address == f"{seen.url}/runbook"
        assert f'id="{anchor}"' in seen.runbook
        assert "First:" in page["annotations"]["description"]
