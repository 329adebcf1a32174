"""Result files of the tools people have."""

from __future__ import annotations

import json

import pytest

from kvwatch.errors import UsageError
from kvwatch.runs.formats import read_runs
from kvwatch.runs.run import Percentiles

BENCH = {
    "date": "20260131-120000",
    "backend": "vllm",
    "model_id": "demo-8b",
    "num_prompts": 200,
    "request_rate": "inf",
    "max_concurrency": 32,
    "duration": 50.0,
    "completed": 200,
    "failed": 0,
    "total_input_tokens": 60000,
    "total_output_tokens": 40000,
    "request_throughput": 4.0,
    "output_throughput": 800.0,
    "total_token_throughput": 2000.0,
    "mean_ttft_ms": 900.0,
    "median_ttft_ms": 800.0,
    "p99_ttft_ms": 2500.0,
    "median_itl_ms": 20.0,
    "p99_itl_ms": 90.0,
}
GUIDE = {
    "request_totals": {"successful": 120, "incomplete": 3, "errored": 0, "total": 123},
    "requests_per_second": {"successful": {"mean": 2.0}},
    "request_concurrency": {"successful": {"mean": 16.0}},
    "request_latency": {"successful": {"mean": 8.0, "percentiles": {"p50": 7.5, "p95": 11.0, "p99": 12.0}}},
    "prompt_token_count": {"successful": {"mean": 300.0}},
    "output_token_count": {"successful": {"mean": 200.0}},
    "time_to_first_token_ms": {"successful": {"percentiles": {"p50": 500.0, "p95": 1500.0, "p99": 2000.0}}},
    "inter_token_latency_ms": {"successful": {"percentiles": {"p50": 20.0, "p95": 40.0, "p99": 80.0}}},
    "output_tokens_per_second": {"successful": {"mean": 400.0}},
    "tokens_per_second": {"successful": {"mean": 1000.0}},
}


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "result.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_a_result_of_vllm_bench_serve(file):
    (run,) = read_runs(file(BENCH))
    assert run.seconds == 50.0
    assert run.lines.generated_tokens_per_second == 800.0
    assert run.lines.total_tokens_per_second == 2000.0
    assert run.lines.preemption_ratio is None  # a client cannot see it
    assert run.lines.time_to_first_token == Percentiles(0.8, None, 2.5)
    assert run.conditions.concurrency == 32.0
    assert (run.conditions.mean_prompt_tokens, run.conditions.mean_output_tokens) == (300.0, 200.0)


def test_a_detailed_result_gives_every_percentile(file):
    detailed = {**BENCH, "ttfts": [float(n) for n in range(1, 102)], "itls": [[0.01, 0.02], [], [0.03]], "latencies": [4.0]}
    (run,) = read_runs(file(detailed))
    assert run.lines.time_to_first_token == Percentiles(51.0, 96.0, 100.0)
    assert run.lines.inter_token_latency.p50 == 0.02
    assert run.lines.e2e_latency == Percentiles(4.0, 4.0, 4.0)


def test_requests_that_failed_are_zeros_in_a_detailed_result_and_count_for_nothing(file):
    detailed = {**BENCH, "ttfts": [1.0, 0.0, 2.0], "itls": [[0.1, 0.2], [], [0.3]], "errors": ["", "Connection reset", ""]}
    (run,) = read_runs(file(detailed))
    assert run.lines.time_to_first_token.p50 == 1.5
    # What a request took is its first token and the times between the others: 1.3 and 2.3 s.
    assert run.lines.e2e_latency.p50 == pytest.approx(1.8)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(json.dumps(BENCH) + "\n" + json.dumps({**BENCH, "max_concurrency": 64}), id="--append-result"),
        pytest.param(json.dumps([BENCH, {**BENCH, "max_concurrency": 64}]), id="summary.json of vllm bench sweep"),
        pytest.param("\ufeff" + json.dumps(BENCH) + json.dumps({**BENCH, "max_concurrency": 64}) + "\n\n", id="nothing in between"),
    ],
)
def test_several_results_in_one_file_are_several_runs(file, content):
    assert [(run.source, run.conditions.concurrency) for run in read_runs(file(content))] == [
        ("result.json#1", 32.0),
        ("result.json#2", 64.0),
    ]


@pytest.mark.parametrize(
    ("beside", "slots"),
    [
        ({"max_num_seqs": 16}, 16),
        ({"max-num-seqs": "16"}, 16),
        ({"max_num_seqs": "auto"}, None),
        ({"max_num_seqs": None}, None),
        ({}, None),
    ],
)
def test_a_setting_that_stands_beside_the_figures_is_read(file, beside, slots):
    (run,) = read_runs(file({**BENCH, **beside}))
    assert run.conditions.max_num_seqs == slots


def test_a_report_of_guidellm_holds_a_run_for_each_benchmark(file):
    first, second = read_runs(file({"metadata": {}, "benchmarks": [{"metrics": GUIDE, "duration": 60.0}, {"metrics": GUIDE}]}))
    assert (first.source, second.source) == ("result.json#1", "result.json#2")
    assert first.seconds == second.seconds == 60.0  # 120 requests at 2 a second, where the report does not say
    assert first.lines.time_to_first_token == Percentiles(0.5, 1.5, 2.0)
    assert first.lines.e2e_latency == Percentiles(7.5, 11.0, 12.0)
    assert first.conditions.concurrency == 16.0


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1, 2]", "neither a snapshot of kvwatch"),
        ({"data": {"result": []}}, "neither a snapshot of kvwatch"),
        ({"benchmarks": []}, "neither a snapshot of kvwatch"),
        ({"kvwatch_snapshot": 2}, "snapshot version 2"),
        ({"kvwatch_snapshot": 1}, "lines is missing"),
        ({"kvwatch_snapshot": 1, "seconds": "ten", "lines": {}, "conditions": {}}, "is missing"),
        ({"benchmarks": [{"metrics": {"request_totals": 5}}]}, "result.json"),
    ],
)
def test_anything_else_is_refused_in_one_line(file, content, why):
    with pytest.raises(UsageError, match=why) as caught:
        read_runs(file(content))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.json: No such file"):
        read_runs(tmp_path / "none.json")
