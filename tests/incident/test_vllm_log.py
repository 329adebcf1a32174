"""vLLM's log as a source: every form of its stats lines, behind every prefix, read to the last field."""

from __future__ import annotations

import gzip
import io
import json
import lzma
from datetime import UTC, datetime

import pytest

from kvwatch.commands import cli
from kvwatch.incident.vllm_log import LogReader
from kvwatch.poller.vllm import parse_scrape

V1 = (
    "Engine 000: Avg prompt throughput: 300.0 tokens/s, Avg generation throughput: 425.5 tokens/s, Running: 6 reqs, Waiting: 22 reqs, "
    "GPU KV cache usage: 53.5%, Prefix cache hit rate: 12.0%"
)
V0 = (
    "Avg prompt throughput: 300.0 tokens/s, Avg generation throughput: 425.5 tokens/s, Running: 6 reqs, Swapped: 1 reqs, Pending: 22 reqs, "
    "GPU KV cache usage: 53.5%, CPU KV cache usage: 9.0%."
)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()


def read(*lines, year=2026):
    reader = LogReader(year)
    return reader, list(reader.entries(lines))


def only(*lines):
    _, (entry,) = read(*lines)
    return entry.t, parse_scrape(entry.body, entry.t).snapshots[0]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(f"INFO 01-31 12:00:00 [loggers.py:123] {V1}", id="V1"),
        pytest.param(f"INFO 01-31 12:00:00 metrics.py:351] {V0}", id="V0"),
        pytest.param(f"INFO 01-31 12:00:00 [metrics.py:486] {V0}", id="V0 with brackets"),
        pytest.param(f"(APIServer pid=4711) INFO 01-31 12:00:00 [loggers.py:335] {V1}", id="API server"),
        pytest.param(f"\x1b[0;36m(APIServer pid=4711)\x1b[0;0m INFO 01-31 12:00:00 [loggers.py:335] {V1}", id="colours"),
        pytest.param(f"2026-01-31T12:00:00.000000000Z INFO 01-31 14:00:00 [loggers.py:335] {V1}", id="docker logs -t, another zone inside"),
        pytest.param(f"2026-01-31T12:00:00.000000000Z stdout F INFO 01-31 12:00:00 [loggers.py:335] {V1}", id="Kubernetes"),
        pytest.param(f"2026-01-31T13:00:00+01:00 INFO [loggers.py:335] {V1}", id="a zone of its own"),
        pytest.param(f"vllm-1  | INFO 01-31 12:00:00 [loggers.py:335] {V1}", id="docker compose"),
        pytest.param(f"Jan 31 12:00:01 gpu-1 vllm[4711]: INFO 01-31 12:00:00 [loggers.py:335] {V1}", id="journald"),
        pytest.param(f"(ServeReplica:default:LLM pid=4711) INFO 01-31 12:00:00 [loggers.py:116] {V1}", id="Ray Serve"),
        pytest.param(f"\x1b[36m(RayTrainWorker pid=1, ip=10.0.0.2)\x1b[0m INFO 01-31 12:00:00 metrics.py:455] {V0}", id="Ray, coloured"),
        pytest.param(json.dumps({"timestamp": "2026-01-31 12:00:00,000", "level": "INFO", "message": V1}), id="JSON"),
        pytest.param(f"[2026-01-31 12:00:00] INFO loggers.py:335: {V1}", id="a format of one's own"),
        pytest.param(
            json.dumps(
                {"log": f"INFO 01-31 14:00:00 [loggers.py:335] {V1}\n", "stream": "stderr", "time": "2026-01-31T12:00:00.000000000Z"}
            ),
            id="docker's json-file, the time behind the line",
        ),
        pytest.param(f"[pod/vllm-0/vllm] INFO 01-31 12:00:00 [loggers.py:335] {V1}", id="kubectl logs --prefix"),
        pytest.param(f"[pod/vllm-0/vllm] 2026-01-31T12:00:00.000000000Z INFO 01-31 14:00:00 [loggers.py:335] {V1}", id="and --timestamps"),
        pytest.param(f"vllm-0 vllm INFO 01-31 12:00:00 [loggers.py:335] {V1}", id="stern"),
        pytest.param(f"2026-01-31T12:00:00+0000 gpu-1 vllm[4711]: INFO 01-31 14:00:00 [loggers.py:335] {V1}", id="journalctl -o short-iso"),
        pytest.param(f"<14>1 2026-01-31T12:00:00.000Z gpu-1 vllm 4711 - - INFO 01-31 14:00:00 [loggers.py:335] {V1}", id="syslog"),
        pytest.param(f"(EngineCore_DP0 pid=4711) INFO 01-31 12:00:00 [v1/metrics/loggers.py:116] {V1}", id="an engine's process"),
        pytest.param(f"\x1b[1;32mINFO\x1b[0m 01-31 12:00:00 [loggers.py:335] {V1}", id="the level coloured"),
        pytest.param(f"INFO 01-31 12:00:00.000 [loggers.py:335] {V1}\r\n", id="milliseconds, and another system's line end"),
        pytest.param(f"2026-01-31 12:00:00,000 - vllm.v1.metrics.loggers - INFO - {V1}", id="Python's own format"),
        pytest.param(f"2026-01-31 12:00:00.000 | INFO     | vllm:log:335 - {V1}", id="loguru"),
        pytest.param(json.dumps({"ts": 1769860800.0, "message": V1}), id="JSON, unix seconds"),
        pytest.param(json.dumps({"message": V1, "@timestamp": "2026-01-31T12:00:00.000Z"}), id="a shipper's JSON, the time last"),
        pytest.param(
            json.dumps({"__REALTIME_TIMESTAMP": "1769860800000000", "MESSAGE": f"INFO 01-31 14:00:00 [loggers.py:335] {V1}"}),
            id="journalctl -o json",
        ),
    ],
)
def test_a_stats_line_is_read_to_the_last_field(line):
    t, snapshot = only(line)
    assert t == NOON
    assert (snapshot.running, snapshot.waiting, snapshot.kv_usage) == (6.0, 22.0, 0.535)
    assert snapshot.engine.engine == "0"
    assert (snapshot.prompt_tokens, snapshot.generation_tokens) == (3000.0, 4255.0)  # ten seconds, as usual, before the first line
    assert snapshot.preemptions is None
    assert snapshot.finished is None


@pytest.mark.parametrize(
    ("tail", "preemptions", "deferred", "usage"),
    [
        ("Running: 6 reqs, Waiting: 9 reqs, Preemptions: 4, GPU KV cache usage: 99.0%, Prefix cache hit rate: 0.0%", 4.0, None, 0.99),
        ("Running: 6 reqs, Waiting: 9 reqs, Deferred: 3 reqs, KV cache usage: 40.0%", None, 3.0, 0.4),
        (
            (
                "Running: 6 reqs, Waiting: 9 reqs, Deferred: 3 reqs, KV fetch: 1 waiting to start, 2 in progress, "
                "0 completed waiting, Preemptions: 1, GPU KV cache usage: 40.0%, External prefix cache hit rate: 1.0%"
            ),
            1.0,
            3.0,
            0.4,
        ),
        ("Running: 6 reqs, Waiting: 9 reqs, CPU KV cache usage: 97.4%, Prefix cache hit rate: 0.0%", None, None, 0.974),
        ("Running: 6 reqs, Waiting: 9 reqs", None, None, None),
    ],
)
def test_what_later_versions_put_into_the_line(tail, preemptions, deferred, usage):
    head = "INFO 01-31 12:00:00 [loggers.py:1] Engine 003: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
    _, snapshot = only(head + tail)
    assert snapshot.engine.engine == "3"
    assert snapshot.waiting == 9.0  # the deferred ones are among the waiting
    assert (snapshot.preemptions, snapshot.waiting_deferred, snapshot.kv_usage) == (preemptions, deferred, usage)


def test_engines_of_one_log_are_told_apart_and_an_aggregate_is_called_all():
    second = V1.replace("Engine 000", "Engine 001")
    aggregate = V1.replace("Engine 000", "2 Engines Aggregated")
    _, entries = read(*(f"INFO 01-31 12:00:00 [loggers.py:1] {line}" for line in (V1, second, aggregate)))
    assert [parse_scrape(one.body, one.t).snapshots[0].engine.engine for one in entries] == ["0", "1", "all"]


def test_tokens_are_counted_on_from_rates_and_begin_again_with_the_server():
    lines = [f"INFO 01-31 12:00:{second:02d} [loggers.py:1] {V1}" for second in (0, 10, 20)]
    start = "INFO 01-31 12:05:00 [api_server.py:1] vLLM API server version 0.32.0"
    _, entries = read(*lines, start, f"INFO 01-31 12:06:00 [loggers.py:1] {V1}")
    tokens = [parse_scrape(one.body, one.t).snapshots[0].generation_tokens for one in entries if one.body]
    assert tokens == [4255.0, 8510.0, 12765.0, 4255.0]


@pytest.mark.parametrize("version", ["0.10.2", "0.11.1", "0.32.0"])
def test_a_line_without_preemptions_says_nothing_of_them_whatever_the_version(version):
    """Up to 0.32 the count is set to 0 just before it is looked at."""
    start = f"INFO 01-31 11:59:00 [api_server.py:1] vLLM API server version {version}"
    assert only(start, f"INFO 01-31 12:00:00 [loggers.py:1] {V1}")[1].preemptions is None


def test_a_server_that_has_named_preemptions_says_zero_by_not_naming_them_until_another_is_started():
    named = V1.replace("GPU KV", "Preemptions: 3, GPU KV")
    start = "INFO 01-31 12:05:00 [api_server.py:1] vLLM API server version 0.40.0"
    _, entries = read(*(f"INFO 01-31 12:00:{n}0 [loggers.py:1] {line}" for n, line in enumerate((V1, named, V1))), start,
                      f"INFO 01-31 12:06:00 [loggers.py:1] {V1}")  # fmt: skip
    assert [parse_scrape(one.body, one.t).snapshots[0].preemptions for one in entries if one.body] == [None, 3.0, 3.0, None]


def test_v0_warns_of_every_fiftieth_preemption():
    warning = (
        "WARNING 01-31 12:00:05 scheduler.py:1] Sequence group cmpl-1 is preempted by PreemptionMode.RECOMPUTE mode because there is not "
        "enough KV cache space. total_num_cumulative_preemption=51"
    )
    first, second, third = (f"INFO 01-31 12:00:{second} metrics.py:1] {V0}" for second in ("00", "10", "20"))
    _, entries = read(first, warning, second, third)
    # After the warning it is not known again: up to 49 more may have come.
    assert [parse_scrape(one.body, one.t).snapshots[0].preemptions for one in entries] == [None, 51.0, None]


def test_a_busy_engine_that_writes_no_line_is_silent_and_an_idle_one_is_not():
    busy = [f"INFO 01-31 12:{minute:02d}:{second:02d} [loggers.py:1] {V1}" for minute, second in ((0, 0), (0, 10), (2, 0))]
    _, entries = read(*busy)
    silent = [entry for entry in entries if entry.body is None]
    assert [entry.t - NOON for entry in silent] == [20.0 + 10 * n for n in range(10)]
    assert silent[0].error == "timeout: no stats line for 10 s while requests were running"
    idle = [line.replace("Running: 6", "Running: 0") for line in busy]
    assert [entry.error for entry in read(*idle)[1]] == [None, None, None]


def test_after_a_line_without_a_token_silence_is_more_of_the_same():
    """No line is written when this and the one before would be of no token: an engine that hangs falls silent."""
    frozen = V1.replace("throughput: 300.0", "throughput: 0.0").replace("throughput: 425.5", "throughput: 0.0")
    assert frozen.count(" 0.0 tokens/s") == 2
    lines = [f"INFO 01-31 12:{minute:02d}:{second:02d} [loggers.py:1] {line}" for minute, second, line in (
        (0, 0, V1), (0, 10, frozen), (1, 0, V1))]  # fmt: skip
    _, entries = read(*lines)
    seen = [parse_scrape(one.body, one.t).snapshots[0] for one in entries]
    assert [one.at - NOON for one in seen] == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    assert {(one.running, one.waiting, one.generation_tokens) for one in seen[1:6]} == {(6.0, 22.0, 4255.0)}


def test_the_turn_of_the_year_is_not_a_step_back():
    _, entries = read(f"INFO 12-31 23:59:55 [loggers.py:1] {V1}", f"INFO 01-01 00:00:05 [loggers.py:1] {V1}", year=2025)
    assert entries[1].t - entries[0].t == 10.0


def test_lines_without_a_time_are_the_usual_interval_apart():
    reader, entries = read(V1, V1)
    assert entries[1].t - entries[0].t == 10.0
    assert reader.without_time


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_replay_reads_a_log_as_it_reads_a_recording(tmp_path, capsys, pack):
    idle = V1.replace("Running: 6", "Running: 0").replace("Waiting: 22", "Waiting: 0")
    log = "\n".join(["starting", *(f"INFO 01-31 12:{n // 6:02d}:{n % 6}0 [loggers.py:1] {idle}" for n in range(12))]) + "\n"
    path = tmp_path / "vllm.log.1"
    path.write_bytes(pack(log.encode()))
    assert cli.main(["replay", str(path), "--format", "jsonl"]) == 0
    said = capsys.readouterr()
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert len(rows) == 12
    assert rows[-1]["state"] == "healthy"
    assert rows[-1]["preemption_ratio"] == {"fast": None, "slow": None}
    assert said.err.count("\n") == 1
    assert "shows its stats lines only" in said.err


def test_replay_reads_a_log_from_standard_input(monkeypatch, capsys):
    class Input:
        buffer = io.BytesIO(f"INFO 01-31 12:00:00 [loggers.py:1] {V1}\n".encode())

    monkeypatch.setattr("sys.stdin", Input())
    assert cli.main(["replay", "-", "--format", "jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["running"] is None  # one line is no evidence yet


@pytest.mark.parametrize("content", [b"", b"hello\n", b"INFO 01-31 12:00:00 nothing here\n", b"\x1f\x8bbroken"])
def test_what_is_neither_a_recording_nor_a_log_is_one_line(tmp_path, capsys, content):
    path = tmp_path / "some.log"
    path.write_bytes(content)
    assert cli.main(["replay", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_snapshot_measures_a_log_too(tmp_path, capsys):
    path = tmp_path / "vllm.log"
    path.write_text("".join(f"INFO 01-31 12:00:{n}0 [loggers.py:1] {V1}\n" for n in range(6)))
    assert cli.main(["snapshot", str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["lines"]["generated_tokens_per_second"] == pytest.approx(425.5)
    assert document["lines"]["preemption_ratio"] is None
    assert document["conditions"]["mean_running"] == 6.0
