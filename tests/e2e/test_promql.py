"""Every PromQL expression we ship returns data on a real Prometheus that scraped kvwatch while a simulated vLLM ran out of KV cache.

One storm of about half a minute, polled and scraped every second, serves all of it. Expressions are asked over the whole time, since
some are about a moment (a filling cache) that ends. A second target refuses connections, for what is said of targets that are down.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from peers import free_port

from kvwatch.clock import SystemClock

pytestmark = pytest.mark.e2e

STORM_SECONDS = 45.0
SIMULATOR = ["--num-gpu-blocks=1500", "--max-num-seqs=64", "--concurrency=48", "--served-model-name=demo-8b"]
# What Kubernetes adds to each series of a pod, kvwatch's and vLLM's alike, and what is chosen on the dashboards.
POD_LABELS = {"namespace": "serving", "pod": "chat-0"}
GRAFANA = {
    **POD_LABELS,
    "vllm": ".*",
    "__rate_interval": "10s",
    "__range": "1m",
    "instance": ".*",
    "job": "kvwatch",
    "target": ".*",
    "model_name": ".*",
    "engine": ".*",
}

MAY_BE_SILENT = {
    "KVWatchEngineStalled": "tokens come out all the time",
    "KVWatchComputeBound": "the cache binds and not the compute side",
    "KVWatchLatencyObjectiveMissed": "no objective is set",
    "KVWatchBaselineRegressed": "no baseline is set",
    "KVWatchWatcherBlind": "warming up may be over before the first scrape",
}
"""Alerts about something else than a storm, and why they may say nothing in one. All other expressions must return data."""
CLOCK = SystemClock()


@dataclass(frozen=True)
class Prometheus:
    """A running server, and when it began to scrape."""

    url: str
    since: float
    kvwatch: str
    """Where the kvwatch it scrapes answers."""
    target: str
    """The vLLM in a storm."""

    def series(self, expression: str) -> list[dict[str, Any]]:
        """What *expression* says over the whole time; fails the test where it cannot be evaluated."""
        arguments = {"query": expression, "start": self.since, "end": CLOCK.unix(), "step": 1}
        return self._get("query_range", arguments)["result"]

    def label_values(self, selector: str, label: str) -> list[str]:
        return self._get(f"label/{label}/values", {"match[]": selector, "start": self.since, "end": CLOCK.unix()})

    def _get(self, path: str, arguments: dict[str, Any]) -> Any:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            pytest.fail(f"{arguments}: {error.read().decode()}")


@contextmanager
def running(command: list[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended with the test; what it says goes to *log*."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def until(what: Callable[[], Any], process: subprocess.Popen[bytes], log: Path, seconds: float = 30.0) -> Any:
    """The first true answer of *what*, which may fail meanwhile with an `OSError`."""
    end = CLOCK.monotonic() + seconds
    while CLOCK.monotonic() < end and process.poll() is None:
        try:
            if found := what():
                return found
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail(f"it did not come up: {log.read_text()}")


def answers(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=2) as answer:
        return answer.status == 200


OPTIONAL = """\
vllm:spec_decode_num_drafts_total{labels} {n}
vllm:spec_decode_num_draft_tokens_total{labels} {n}
vllm:spec_decode_num_accepted_tokens_total{labels} {n}
vllm:external_prefix_cache_queries_total{labels} {n}
vllm:external_prefix_cache_hits_total{labels} {n}
vllm:nixl_bytes_transferred_sum{labels} {n}
vllm:nixl_xfer_time_seconds_bucket{le} {n}
vllm:nixl_num_failed_transfers_total{labels} {n}
vllm:nixl_num_kv_expired_reqs_total{labels} {n}
"""
"""What vLLM 0.32 has with speculative decoding and remote KV only; the simulator has neither."""


@pytest.fixture(scope="module")
def optional() -> Iterator[str]:
    """Address of a vLLM with what only some have, each counting its scrapes."""
    scrapes = itertools.count()
    labels = 'model_name="demo-8b",engine="0"'

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = OPTIONAL.format(labels=f"{{{labels}}}", le=f'{{{labels},le="0.1"}}', n=next(scrapes)).encode()
            body += body.splitlines()[6].replace(b'"0.1"', b'"+Inf"') + b"\n"
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Tests are quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def prometheus(require_tool, tmp_path_factory, optional) -> Iterator[Prometheus]:
    """A Prometheus that has seen the storm, of kvwatch and of vLLM."""
    program, folder = require_tool("prometheus"), tmp_path_factory.mktemp("storm")
    simulator_log, kvwatch_log, prometheus_log = (folder / f"{name}.log" for name in ("simulator", "kvwatch", "prometheus"))
    engine, web, port, nobody = free_port(), free_port(), free_port(), free_port()
    with running([sys.executable, "-m", "kvwatch.simulator", f"--port={engine}", *SIMULATOR], simulator_log) as simulator:
        target = f"http://127.0.0.1:{engine}/metrics"
        until(lambda: answers(target), simulator, simulator_log)
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "kvwatch",
            "run",
            target,
            f"http://127.0.0.1:{nobody}/metrics",
            "--poll.interval=1s",
        ]
        command += [f"--web.listen-address=127.0.0.1:{web}", f"--alertmanager.urls=http://127.0.0.1:{nobody}"]
        with running(command, kvwatch_log) as kvwatch:
            until(lambda: answers(f"http://127.0.0.1:{web}/-/ready"), kvwatch, kvwatch_log)
            config = folder / "prometheus.yml"
            config.write_text(
                yaml.safe_dump(
                    {
                        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                        "scrape_configs": [
                            {"job_name": "kvwatch", "static_configs": [{"targets": [f"127.0.0.1:{web}"], "labels": POD_LABELS}]},
                            {"job_name": "vllm", "static_configs": [{"targets": [f"127.0.0.1:{engine}", optional], "labels": POD_LABELS}]},
                        ],
                    }
                )
            )
            server = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
            with running([*server, f"--web.listen-address=127.0.0.1:{port}"], prometheus_log) as process:
                since = CLOCK.unix()
                url = f"http://127.0.0.1:{port}"
                until(lambda: answers(f"{url}/-/ready"), process, prometheus_log)
                time.sleep(STORM_SECONDS)
                yield Prometheus(url, since, f"http://127.0.0.1:{web}", target)


def without_data(prometheus: Prometheus, expressions: dict[str, str]) -> dict[str, str]:
    """Those that return no number: no series, or nothing but NaN, as of a quantile of nothing or 0 ÷ 0."""

    def numbers(expression: str) -> Iterator[float]:
        return (float(value) for series in prometheus.series(expression) for _, value in series["values"])

    return {name: expression for name, expression in expressions.items() if not any(map(math.isfinite, numbers(expression)))}


def for_grafana(text: str) -> str:
    """*text* with Grafana's variables put in."""
    return re.sub(r"\$(\w+)", lambda match: GRAFANA[match[1]], text)


ENGINE_LABELS = {"target", "model_name", "engine"}
CONTRACT: dict[str, set[str]] = {
    "state": {*ENGINE_LABELS, "state"},
    "cause": {*ENGINE_LABELS, "cause"},
    "state_seconds_total": {*ENGINE_LABELS, "state"},
    "state_transitions_total": ENGINE_LABELS,
    "preemption_ratio": {*ENGINE_LABELS, "window"},
    "preemptions": {*ENGINE_LABELS, "window"},
    "kv_cache_usage_ratio": ENGINE_LABELS,
    "kv_cache_usage_peak_ratio": ENGINE_LABELS,
    "kv_capacity_tokens": ENGINE_LABELS,
    "kv_free_tokens": ENGINE_LABELS,
    "kv_tokens_per_sequence": ENGINE_LABELS,
    "kv_demand_ratio": ENGINE_LABELS,
    "kv_seconds_to_full": ENGINE_LABELS,
    "seconds_without_progress": ENGINE_LABELS,
    "sustainable_sequences": ENGINE_LABELS,
    "requests_running": ENGINE_LABELS,
    "requests_waiting": ENGINE_LABELS,
    "generation_tokens_per_second": ENGINE_LABELS,
    "prompt_tokens_per_second": ENGINE_LABELS,
    "recompute_ratio": ENGINE_LABELS,
    "time_to_first_token_seconds": {*ENGINE_LABELS, "quantile"},
    "inter_token_latency_seconds": {*ENGINE_LABELS, "quantile"},
    "e2e_request_latency_seconds": {*ENGINE_LABELS, "quantile"},
    "recommended_max_num_seqs": ENGINE_LABELS,
    "alert_active": {*ENGINE_LABELS, "alert", "severity"},
    "alert_condition": {*ENGINE_LABELS, "alert"},
    "build_info": {"version", "python_version"},
    "target_up": {"target"},
    "last_successful_scrape_timestamp_seconds": {"target"},
    "target_scrapes_total": {"target"},
    "target_scrape_failures_total": {"target", "reason"},
    "target_scrape_duration_seconds": {"target"},
    "signal_source_info": {"target", "signal", "name"},
    "alertmanager_notifications_total": {"alertmanager"},
    "alertmanager_notifications_failed_total": {"alertmanager"},
    "tick_overruns_total": {"target"},
    "target_engines_dropped_total": {"target"},
    "log_lines_dropped_total": set(),
    "config_last_reload_successful": set(),
    "config_last_reload_success_timestamp_seconds": set(),
    "shards": {"shard"},
    "collect_faults_total": set(),
    "engine_faults_total": {"target"},
}
"""Names and labels that users rely on: they change through the changelog only."""


def test_every_scrape_went_well(prometheus):
    [up] = prometheus.series('up{job="kvwatch"}')
    assert {value for _, value in up["values"]} == {"1"}


def test_every_name_of_the_contract_arrives_with_its_labels(prometheus):
    added = {"__name__", "job", "instance", *POD_LABELS}
    arrived = {name: set().union(*(one["metric"].keys() for one in prometheus.series(f"kvwatch_{name}"))) - added for name in CONTRACT}
    assert arrived == CONTRACT
    known = prometheus.label_values('{job="kvwatch"}', "__name__")
    assert {name for name in known if name.startswith("kvwatch_")} == {f"kvwatch_{name}" for name in CONTRACT}


def test_promtool_has_nothing_to_say_about_what_a_running_kvwatch_serves(prometheus, require_tool):
    with urllib.request.urlopen(f"{prometheus.kvwatch}/metrics", timeout=5) as answer:
        exposition = answer.read()
    result = subprocess.run([require_tool("promtool"), "check", "metrics"], input=exposition, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_the_fleet_page_says_how_many_series_there_are(prometheus, repository):
    """Within a tenth: what is known of an engine differs a little from one moment to the next."""
    page = (repository / "docs" / "fleet.md").read_text()
    said = [int(found) for found in re.findall(r"^\| of .+ \| (\d+)[:| ]", page, re.MULTILINE)]
    with urllib.request.urlopen(f"{prometheus.kvwatch}/metrics", timeout=5) as answer:
        series = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    of_target = [line for line in series if re.search(rf'target="{prometheus.target}"', line)]
    of_engine = [line for line in of_target if 'engine="' in line]
    of_none = [line for line in series if 'target="' not in line]
    counted = [len(of_engine), len(of_target) - len(of_engine), len(of_none)]
    assert counted == [pytest.approx(number, rel=0.1) for number in said]


@pytest.mark.parametrize("name", ["kvwatch-fleet", "kvwatch-engine"])
def test_every_panel_shows_something(prometheus, repository, name):
    dashboard = json.loads((repository / "deploy" / "grafana" / f"{name}.json").read_text())
    expressions = {
        f"{panel['title']} ({target['refId']})": for_grafana(target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }
    expressions |= {one["name"]: for_grafana(one["expr"]) for one in dashboard["annotations"]["list"]}
    assert len(expressions) > 10
    assert without_data(prometheus, expressions) == {}


@pytest.mark.parametrize("name", ["kvwatch-fleet", "kvwatch-engine"])
def test_every_variable_has_something_to_choose_from(prometheus, repository, name):
    dashboard = json.loads((repository / "deploy" / "grafana" / f"{name}.json").read_text())
    queries = {one["name"]: one["definition"] for one in dashboard["templating"]["list"] if one["type"] == "query"}
    assert len(queries) >= 3
    for variable, query in queries.items():
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", for_grafana(query)).groups()
        assert prometheus.label_values(selector, label), variable


def test_the_autoscalers_get_a_number_and_it_is_the_demand(prometheus, repository):
    folder = repository / "deploy" / "kubernetes" / "autoscaling"
    keda = yaml.safe_load((folder / "keda/scaled-object.yaml").read_text())["spec"]["triggers"][0]["metadata"]["query"]
    [rule] = yaml.safe_load((folder / "hpa/prometheus-adapter-values.yaml").read_text())["rules"]["external"]
    matchers = 'job="kvwatch",namespace="serving"'
    adapter = rule["metricsQuery"].replace("<<.Series>>", "kvwatch_kv_demand_ratio").replace("<<.LabelMatchers>>", matchers)
    assert prometheus.series(rule["seriesQuery"])
    [wanted], [also] = prometheus.series(keda), prometheus.series(adapter)
    [demand] = prometheus.series("kvwatch_kv_demand_ratio")
    peak = max(float(value) for _, value in demand["values"])
    assert peak > 1, "a storm is more than one replica can hold"
    for asked in (wanted, also):
        assert max(float(value) for _, value in asked["values"]) == peak


def test_every_rule_evaluates_and_those_of_a_storm_return_data(prometheus, repository):
    groups = yaml.safe_load((repository / "rules" / "kvwatch.rules.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    # No rules are loaded here, so what a rule records is put in its place.
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    expressions = {
        rule.get("alert") or rule["record"]: re.sub(r"\bmodel\w*:[\w:]+", lambda match: f"({recorded[match[0]]})", rule["expr"])
        for rule in rules
    }
    assert set(without_data(prometheus, expressions)) <= set(MAY_BE_SILENT)
