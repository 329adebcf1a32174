"""``kvwatch replay --prometheus``: scrapes put together again from a Prometheus' samples."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import urllib.parse
import urllib.request
from itertools import pairwise

import pytest
from fake_prometheus import fake_prometheus
from peers import answer, free_port, sends
from recordings_made import body, storm_body, write

from kvwatch.clock import SystemClock
from kvwatch.commands import cli
from kvwatch.errors import PrometheusError
from kvwatch.incident.prometheus import Prometheus
from kvwatch.incident.prometheus_api import PrometheusAccess, PrometheusApi
from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.load import ClosedLoop
from kvwatch.simulator.server import SimulatorServer
from kvwatch.simulator.simulation import Simulation

SINCE = 1_700_000_000


@pytest.fixture
def prometheus():
    """A fake one on HTTP, with its `url`."""
    with fake_prometheus() as fake:
        yield fake


@pytest.fixture
def replay(capsys):
    """Lines of the replay of a Prometheus."""

    def lines(*arguments):
        assert cli.main(["replay", "--format=jsonl", *arguments]) == 0
        printed = capsys.readouterr()
        usual = (" s apart and do not show ", ": of the time asked for it has samples ")
        assert [line for line in printed.err.splitlines() if not any(said in line for said in usual)] == []
        return [json.loads(line) for line in printed.out.splitlines()]

    return lines


def bodies(first, last, step, storm_since):
    return {t: storm_body(t, storm_since) if t > storm_since else body(t) for t in range(first, last, step)}


def test_a_replay_of_a_prometheus_says_what_the_replay_of_the_recording_says(prometheus, replay, tmp_path):
    """Over several chunks of ten minutes."""
    scrapes = bodies(100_000, 101_500, 5, 100_900)
    for t, text in scrapes.items():
        prometheus.scraped(t, "vllm-0:8000", text)
    recording = write(tmp_path / "same.jsonl", *scrapes.items(), target="vllm-0:8000")
    found = replay("--prometheus", prometheus.url, "--start", "1970-01-02T03:46:40Z", "--end", "1970-01-02T04:11:40+00:00")
    assert found == replay(str(recording))
    assert any("PreemptionStorm" in line["alerts"] for line in found)
    assert len(prometheus.queries) == 1 + 3 * 3


def test_only_the_time_that_was_asked_for(prometheus, replay):
    for t in range(100_000, 100_100, 10):
        prometheus.scraped(t, "vllm-0:8000", body(t))
    found = replay("--prometheus", prometheus.url, "--start=1970-01-02T03:47:00", "--end=1970-01-02T03:47:30")
    assert [line["t"] for line in found] == [100_020, 100_030, 100_040, 100_050]


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (0, 290, ""),
        (-100, 390, ""),
        (-4000, 290, "of the time asked for it has samples from 2023-11-14T22:13:20.000Z to 2023-11-14T22:18:10.000Z only"),
        (100, 4000, "of the time asked for it has samples from 2023-11-14T22:15:00.000Z to 2023-11-14T22:18:10.000Z only"),
    ],
)
def test_a_range_of_which_a_part_is_missing_is_used_and_said_once(prometheus, capsys, start, end, said):
    """Older than what it keeps, or scraped later than was thought."""
    for t in range(0, 300, 10):
        prometheus.scraped(SINCE + t, "vllm-0:8000", body(t))
    asked = [f"--start={SINCE + start}", f"--end={SINCE + end}"]
    assert cli.main(["replay", "--format=jsonl", "--prometheus", prometheus.url, *asked]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 30 - 10 * (start > 0)
    assert err == (said and f"kvwatch: {prometheus.url}: {said}\n")


@pytest.mark.parametrize("arguments", [["replay", "--format=html", "-o"], ["replay", "--export"], ["snapshot", "-o"]])
def test_a_prometheus_that_breaks_off_in_the_middle_leaves_no_file(prometheus, capsys, tmp_path, monkeypatch, arguments):
    for t in range(0, 2_000, 10):
        prometheus.scraped(SINCE + t, "vllm-0:8000", body(t))
    asked, answers = PrometheusApi.query, iter(range(100))

    def breaking(self, query, at):
        if next(answers) > 5:
            raise PrometheusError(f"{self.shown}: HTTP status 503: no store matched")
        return asked(self, query, at)

    monkeypatch.setattr(PrometheusApi, "query", breaking)
    path = tmp_path / "out.jsonl"
    assert cli.main([*arguments, str(path), "--prometheus", prometheus.url, f"--start={SINCE}", f"--end={SINCE + 2000}"]) == 2
    assert capsys.readouterr().err == f"kvwatch: {prometheus.url}: HTTP status 503: no store matched\n"
    assert not path.exists()


def test_unix_times(prometheus, replay):
    for t in range(1_700_000_000, 1_700_000_100, 10):
        prometheus.scraped(t + 0.25, "vllm-0:8000", body(t))
    found = replay("--prometheus", prometheus.url, "--start=1700000000", "--end=1700000025")
    assert [line["t"] for line in found] == [1_700_000_000.25, 1_700_000_010.25, 1_700_000_020.25]


def test_so_long_ago(prometheus, replay):
    now = SystemClock().unix()
    for ago in (7300, 5000, 3000, 30):
        prometheus.scraped(round(now - ago, 3), "vllm-0:8000", body(10_000 - ago))
    assert len(replay("--prometheus", prometheus.url)) == 2
    assert len(replay("--prometheus", prometheus.url, "--start=2h")) == 3
    assert len(replay("--prometheus", prometheus.url, "--start=2h", "--end=45m")) == 2


def test_each_instance_has_its_own_judge_and_name(prometheus, replay):
    for t in range(100_000, 100_100, 10):
        prometheus.scraped(t, "vllm-0:8000", body(t))
        prometheus.scraped(t + 3, 'vllm-1.llm"x":8000', body(t))
        prometheus.scraped(t + 5, "node:9100", "node_load1 1")
    found = replay("--prometheus", prometheus.url, "--start=1970-01-02T03:46:40Z", "--end=1970-01-02T04:00:00Z")
    assert {line["target"] for line in found} == {"vllm-0:8000", 'vllm-1.llm"x":8000'}
    assert len(found) == 20
    assert [line["t"] for line in found] == sorted(line["t"] for line in found)
    assert {line["state"] for line in found[-4:]} == {"healthy"}


def test_two_jobs_that_scrape_one_instance_are_told_apart(prometheus, replay):
    for job in ("a", "b"):
        prometheus.scraped(100_000, "vllm-0:8000", body(1), job)
    found = replay("--prometheus", prometheus.url, "--start=1970-01-02T03:46:40Z", "--end=1970-01-02T04:00:00Z")
    assert {line["target"] for line in found} == {"a/vllm-0:8000", "b/vllm-0:8000"}


def test_a_scrape_that_failed_for_prometheus_is_a_failed_scrape(prometheus, replay):
    for t, text in ((100_000, body(1)), (100_010, None), (100_020, body(21))):
        prometheus.scraped(t, "vllm-0:8000", text)
    found = replay("--prometheus", prometheus.url, "--start=1970-01-02T03:46:40Z", "--end=1970-01-02T04:00:00Z")
    assert [(line["t"], line["engine"], line["cause"]) for line in found] == [
        (100_000, "0", "warming_up"),
        (100_010, "0", "unreachable"),
        (100_020, "0", "ok"),
    ]


def test_labels_come_through_as_they_were(prometheus, replay):
    prometheus.scraped(100_000, "vllm-0:8000", body(1, model=r"a \"b\" c\\d\ne, {f}"))
    (line,) = replay("--prometheus", prometheus.url, "--start=1970-01-02T03:46:40Z", "--end=1970-01-02T04:00:00Z")
    assert line["model_name"] == 'a "b" c\\d\ne, {f}'


def test_names_converted_to_underscores_are_found(prometheus, replay):
    prometheus.scraped(100_000, "vllm-0:8000", body(1).replace("vllm:", "vllm_"))
    prometheus.scraped(100_000, "ray-0:8080", body(1).replace("vllm:", "ray_vllm_"))
    found = replay("--prometheus", prometheus.url, "--start=1970-01-02T03:46:40Z", "--end=1970-01-02T04:00:00Z")
    assert [line["target"] for line in found] == ["ray-0:8080", "vllm-0:8000"]


def test_an_interval_is_kept_for_each_target(prometheus, replay):
    for t in range(100_000, 100_030, 5):
        prometheus.scraped(t, "a:1", body(t))
        prometheus.scraped(t + 2, "b:1", body(t))
    found = replay("--prometheus", prometheus.url, "--start=1970-01-02T03:46:40Z", "--end=1970-01-02T04:00:00Z", "--step=10s")
    assert [(line["t"], line["target"]) for line in found] == [
        (100_000, "a:1"), (100_002, "b:1"), (100_010, "a:1"), (100_012, "b:1"), (100_020, "a:1"), (100_022, "b:1"),
    ]  # fmt: skip


def test_bucket_and_server_series_are_asked_for_too(prometheus):
    text = body(1) + 'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="demo-8b",le="0.1"} 3\nprocess_start_time_seconds 5\n'
    prometheus.scraped(100_000, "vllm-0:8000", text + 'vllm:some_other{engine="0"} 1\n')
    ((target, entry),) = Prometheus(PrometheusApi(prometheus.url, PrometheusAccess())).entries(100_000, 100_010)
    assert target == "vllm-0:8000"
    lines = entry.body.decode().splitlines()
    assert 'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="demo-8b"} 3' in lines
    assert "process_start_time_seconds{} 5" in lines
    assert not any("some_other" in line or line.startswith("up") for line in lines)


TIMES = "write 2026-01-31T12:00:00Z, unix seconds, or 2h for two hours ago"
RANGE = ["--start=1970-01-02T03:46:40Z", "--end=1970-01-02T04:00:00Z"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        pytest.param(["--start=yesterday"], f"--start 'yesterday': {TIMES}", id="no-time"),
        pytest.param(["--end=99999999-01-01"], f"--end '99999999-01-01': {TIMES}", id="no-date"),
        pytest.param(["--start=1h", "--end=2h"], "--start must be before --end", id="backwards"),
    ],
)  # fmt: skip
def test_a_time_that_is_none_is_one_line_and_exit_2(capsys, arguments, fault):
    assert cli.main(["replay", "--prometheus=http://127.0.0.1:1", *arguments]) == 2
    assert capsys.readouterr().err == f"kvwatch: {fault}\n"


@pytest.mark.parametrize(
    ("behave", "fault"),
    [
        pytest.param(sends(answer(b"<html>")), "HTTP status 200, and no answer of a Prometheus", id="html"),
        pytest.param(sends(answer(b"[1]")), "HTTP status 200, and no answer of a Prometheus", id="other-json"),
        pytest.param(sends(answer(b"", b"HTTP/1.1 401 Unauthorized")), "HTTP status 401, and no answer of a Prometheus", id="401"),
        pytest.param(
            sends(answer(b"", b"HTTP/1.1 302 Found", b"Location: http://169.254.169.254/")),
            "HTTP status 302, and no answer of a Prometheus",
            id="redirect",
        ),
        pytest.param(
            sends(answer(b'{"status":"error","errorType":"bad_data","error":"query processing\\n would load too many samples"}',
                         b"HTTP/1.1 422 Unprocessable Entity")),
            "query processing would load too many samples",
            id="refused",
        ),
        pytest.param(sends(answer(b'{"status":"success","data":{"result":[]}}')), "it has no samples of vLLM in that time", id="no-data"),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_use_is_one_line_and_exit_2(peer, capsys, behave, fault):
    url = peer(behave).url.removesuffix("/metrics")
    assert cli.main(["replay", f"--prometheus={url.replace('http://', 'http://user:hunter2@')}", *RANGE]) == 2
    assert capsys.readouterr().err == f"kvwatch: {url}: {fault}\n"


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        pytest.param("http://user:hunter2@127.0.0.1:1", "http://127.0.0.1:1: 127.0.0.1 port 1: Connection refused", id="refused"),
        pytest.param("127.0.0.1:9090", "127.0.0.1:9090: a Prometheus URL starts with http:// or https:// and names a host", id="no-scheme"),
    ],
)
def test_a_prometheus_that_cannot_be_asked_is_one_line_and_exit_2(capsys, url, fault):
    assert cli.main(["replay", f"--prometheus={url}", *RANGE]) == 2
    assert capsys.readouterr().err == f"kvwatch: {fault}\n"


def wait_until(condition, seconds):
    clock, idle = SystemClock(), threading.Event()
    until = clock.monotonic() + seconds
    while not condition():
        assert clock.monotonic() < until
        idle.wait(0.1)


def asked(url):
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
        return response.read().decode()
    return ""


@pytest.mark.e2e
def test_a_real_prometheus_that_has_scraped_a_server(require_tool, replay, tmp_path):
    """Two servers, of which one goes away; every scrape comes back at its time, with the state of the live daemon's classifier."""
    tool, port = require_tool("prometheus"), free_port()
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(SimulatorServer(Simulation(ServerConfig(), ClosedLoop(4)))) for _ in range(2))
        targets = [server.url.removeprefix("http://").removesuffix("/metrics") for server in (first, second)]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "vllm", "static_configs": [{"targets": targets}]}],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        url = f"http://127.0.0.1:{port}"
        process = stack.enter_context(
            subprocess.Popen(
                [tool, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
                 f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        stack.callback(process.terminate)

        def scrapes(instance, up):
            query = urllib.parse.quote(f'count_over_time((up{{instance="{instance}"}} == {up})[1h:1s])')
            found = json.loads(asked(f"{url}/api/v1/query?query={query}") or '{"data": {"result": []}}')["data"]["result"]
            return float(found[0]["value"][1]) if found else 0

        wait_until(lambda: min(scrapes(target, 1) for target in targets) >= 12, 60)
        second.close()
        wait_until(lambda: scrapes(targets[1], 0) >= 2, 30)
        found = replay("--prometheus", url, "--start=10m")
    by_target = {target: [line for line in found if line["target"] == target] for target in targets}
    assert {line["engine"] for line in by_target[targets[0]]} == {"0"}
    assert len(by_target[targets[0]]) >= 12
    assert by_target[targets[0]][-1]["state"] != "unknown"
    assert max(line["running"] or 0.0 for line in by_target[targets[0]]) == 4.0
    assert by_target[targets[1]][-1]["cause"] == "unreachable"
    gaps = [after["t"] - before["t"] for before, after in pairwise(by_target[targets[0]])]
    assert all(0.5 < gap < 1.6 for gap in gaps)
