"""Numbers that are missing, doubled or impossible, and what a snapshot says of them."""

from __future__ import annotations

import sys
from array import array

import pytest

from kvwatch.model import EngineConfig, EngineId, Histogram
from kvwatch.poller.snapshot import read_config
from kvwatch.poller.vllm import parse_scrape

LABELS = 'engine="0",model_name="m"'


def line(name, value, labels=""):
    return f"vllm:{name}{{{LABELS}{',' if labels else ''}{labels}}} {value}"


RUNNING = line("num_requests_running", 3)


def read(*lines):
    return parse_scrape("".join(f"{text}\n" for text in lines).encode(), 1.0)


def one(*lines):
    (snapshot,) = read(*lines).snapshots
    return snapshot


@pytest.mark.parametrize(
    ("written", "usage"),
    [
        pytest.param("0.5", 0.5, id="a-share"),
        pytest.param("0", 0.0, id="empty"),
        pytest.param("1.0", 1.0, id="full"),
        pytest.param("1.02", 1.0, id="above-full"),
        pytest.param("-1e-9", 0.0, id="zero-but-for-rounding"),
        pytest.param("-0.3875", None, id="negative"),
        pytest.param("NaN", None, id="nan"),
        pytest.param("+Inf", None, id="infinite"),
    ],
)
def test_kv_usage_is_a_share_or_nothing(written, usage):
    assert one(RUNNING, line("kv_cache_usage_perc", written)).kv_usage == usage


@pytest.mark.parametrize("written", ["NaN", "+Inf", "-Inf", "-1"])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("num_requests_waiting", "waiting"),
        ("num_preemptions_total", "preemptions"),
        ("generation_tokens_total", "generation_tokens"),
        ("iteration_tokens_total_count", "steps"),
    ],
)
def test_a_count_that_cannot_be_is_absent(written, name, field):
    assert getattr(one(RUNNING, line(name, written)), field) is None


def test_an_engine_whose_only_number_is_nan_exists_and_says_nothing():
    snapshot = one(line("kv_cache_usage_perc", "NaN"))

    assert (snapshot.engine, snapshot.kv_usage, snapshot.running) == (EngineId("m", "0"), None, None)


def test_a_family_without_samples_is_absent_and_not_zero():
    snapshot = one(RUNNING, "# HELP vllm:num_preemptions_total x", "# TYPE vllm:num_preemptions_total counter")

    assert snapshot.preemptions is None


def test_a_preferred_name_without_a_number_gives_way_to_the_older_one():
    read_both = read(RUNNING, line("kv_cache_usage_perc", "NaN"), line("gpu_cache_usage_perc", "0.4"))

    assert read_both.snapshots[0].kv_usage == 0.4
    assert read_both.sources["kv_usage"] == "vllm:gpu_cache_usage_perc"


def test_a_preferred_name_wins_wherever_it_stands():
    snapshot = one(
        line("gpu_cache_usage_perc", "0.1"), line("kv_cache_usage_perc", "0.2"), line("gpu_prefix_cache_hits_total", 5),
        line("prefix_cache_hits_total", 7),
    )  # fmt: skip

    assert (snapshot.kv_usage, snapshot.prefix_hits) == (0.2, 7)


@pytest.mark.parametrize(
    ("lines", "total"),
    [
        pytest.param([("_total", 5)], 5, id="with-total"),
        pytest.param([("", 5)], 5, id="without-total"),
        pytest.param([("", 5), ("_total", 5)], 5, id="doubled"),
    ],
)
def test_a_counter_counts_once_with_or_without_its_suffix(lines, total):
    assert one(RUNNING, *(line(f"num_preemptions{suffix}", value) for suffix, value in lines)).preemptions == total


def test_series_that_differ_only_in_unknown_labels_are_one_number():
    stop = 'finished_reason="stop"'
    snapshot = one(
        RUNNING,
        line("request_success_total", 4, f'{stop},pid="1"'),
        line("request_success_total", 6, f'{stop},pid="2"'),
        line("request_success_total", 1, 'finished_reason="length"'),
        line("num_requests_waiting", 2, 'zone="a"'),
        line("num_requests_waiting", 5, 'zone="b"'),
        line("num_requests_waiting", 5, 'zone="b"'),
    )

    assert (snapshot.finished, snapshot.waiting) == (7, 5)


@pytest.mark.parametrize(
    ("labels", "engine"),
    [
        pytest.param('model_name="m"', EngineId("m", "0"), id="no-engine-label"),
        pytest.param('model_name="m",engine=""', EngineId("m", "0"), id="empty-engine"),
        pytest.param('model_name="m",engine="None"', EngineId("m", "0"), id="none-engine"),
        pytest.param('model_name="m",engine="3"', EngineId("m", "3"), id="another-rank"),
        pytest.param('model_name="None",model="t"', EngineId("t", "0"), id="none-model"),
        pytest.param('engine="0"', EngineId("", "0"), id="no-model"),
    ],
)
def test_an_engine_is_named_by_its_labels(labels, engine):
    assert one(f"vllm:num_requests_running{{{labels}}} 1").engine == engine


def test_labels_may_be_missing_altogether():
    assert one("vllm:num_requests_running 1").engine == EngineId("", "0")


def test_a_lone_replica_keeps_the_plain_name_and_what_was_said_without_its_label():
    snapshot = one(line("num_requests_running", 3, 'ReplicaId="r"'), line("num_preemptions_total", 2))

    assert (snapshot.engine, snapshot.running, snapshot.preemptions) == (EngineId("m", "0"), 3, 2)


@pytest.mark.parametrize(
    ("awake", "asleep"), [pytest.param("1", False, id="awake"), pytest.param("0", True, id="asleep"), pytest.param("NaN", None, id="nan")]
)
def test_an_engine_that_is_not_awake_is_asleep(awake, asleep):
    states = [line("engine_sleep_state", awake, 'sleep_state="awake"'), line("engine_sleep_state", 1, 'sleep_state="discard_all"')]

    assert one(RUNNING, *states).asleep is asleep


def test_flops_stuck_at_zero_are_absent():
    assert one(RUNNING, line("estimated_flops_per_gpu_total", "0.0")).flops is None
    assert one(RUNNING, line("estimated_flops_per_gpu_total", "5e7")).flops == 5e7


def test_created_is_the_latest_and_not_that_of_a_child_that_appeared_later():
    snapshot = one(
        RUNNING,
        line("num_preemptions_created", "100"),
        line("generation_tokens_created", "105"),
        line("request_success_created", "900", 'finished_reason="error"'),
    )

    assert snapshot.created == 105


def histogram(*buckets, count=None, total=None):
    lines = [line("e2e_request_latency_seconds_bucket", value, f'le="{edge}"') for edge, value in buckets]
    if count is not None:
        lines.append(line("e2e_request_latency_seconds_count", count))
    if total is not None:
        lines.append(line("e2e_request_latency_seconds_sum", total))
    return lines


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            histogram(("1", 2), ("2.5", 3), ("+Inf", 4), count=4, total=6.5), Histogram((1, 2.5), array("d", [2, 3, 4]), 6.5), id="whole"
        ),
        pytest.param(histogram(("+Inf", 4), ("10", 3), ("9", 2)), Histogram((9, 10), array("d", [2, 3, 4]), None), id="out-of-order"),
        pytest.param(histogram(("1", 2), count=4), Histogram((1,), array("d", [2, 4]), None), id="count-for-infinity"),
        pytest.param(histogram(("1", 2), ("+Inf", 4), total=-7e5), Histogram((1,), array("d", [2, 4]), -7e5), id="absurd-sum"),
        pytest.param(histogram(("1", 2), ("+Inf", 4), total="NaN"), Histogram((1,), array("d", [2, 4]), None), id="nan-sum"),
        pytest.param(histogram(("+Inf", 4)), Histogram((), array("d", [4]), None), id="only-infinity"),
        pytest.param(histogram(("1", 2)), None, id="no-end"),
        pytest.param(histogram(count=4, total=1), None, id="no-buckets"),
        pytest.param(histogram(("wide", 2), ("+Inf", 4)), None, id="edge-that-is-no-number"),
    ],
)
def test_a_histogram_is_read_whole_or_not_at_all(lines, expected):
    assert one(RUNNING, *lines).e2e_latency == expected


def test_inter_token_latency_is_preferred_to_time_per_output_token():
    old = line("time_per_output_token_seconds_bucket", 1, 'le="+Inf"')
    new = line("inter_token_latency_seconds_bucket", 2, 'le="+Inf"')

    assert one(RUNNING, old, new).inter_token_latency.count == 2
    assert one(RUNNING, old).inter_token_latency.count == 1


def test_histograms_share_their_bounds_and_pack_their_counts():
    first, second = (one(RUNNING, *histogram(*((edge, edge) for edge in range(1, 20)), ("+Inf", n))).e2e_latency for n in (20, 21))

    assert first.bounds is second.bounds
    assert sys.getsizeof(first) + sys.getsizeof(first.counts) < 350


@pytest.mark.parametrize(
    ("labels", "config"),
    [
        pytest.param({}, EngineConfig(), id="nothing"),
        pytest.param(
            {"num_gpu_blocks": "None", "block_size": "None", "cache_dtype": "None", "enable_prefix_caching": "None"},
            EngineConfig(),
            id="none",
        ),
        pytest.param({"kv_cache_size_tokens": "5120", "kv_cache_max_concurrency": "0"}, EngineConfig(kv_cache_size_tokens=5120), id="zero"),
        pytest.param({"num_gpu_blocks": "-1", "gpu_memory_utilization": "NaN", "block_size": "16k"}, EngineConfig(), id="nonsense"),
        pytest.param(
            {"kv_cache_size_tokens": "1000", "kv_cache_max_concurrency": "3.0000003"},
            EngineConfig(kv_cache_size_tokens=1000, max_model_len=333),
            id="rounded",
        ),
        pytest.param(
            {"enable_prefix_caching": "False", "cache_dtype": "fp8"},
            EngineConfig(enable_prefix_caching=False, cache_dtype="fp8"),
            id="said",
        ),
        pytest.param(
            {"mamba_block_size": "None", "mamba_page_size_padded": "None", "sliding_window": "None"}, EngineConfig(), id="attention"
        ),
        pytest.param({"mamba_block_size": "784"}, EngineConfig(mixed_layers=True), id="states"),
        pytest.param({"mamba_page_size_padded": "25690112"}, EngineConfig(mixed_layers=True), id="states before 0.11"),
        pytest.param({"sliding_window": "128"}, EngineConfig(mixed_layers=True), id="window"),
    ],
)
def test_the_configuration_is_read_from_printed_python(labels, config):
    assert read_config(labels) == config


def test_a_configuration_without_engine_is_every_engines():
    lines = [f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} 1' for engine in (0, 1)]
    snapshots = read(*lines, 'vllm:cache_config_info{block_size="16",num_gpu_blocks="7"} 1').snapshots

    assert [snapshot.config.num_gpu_blocks for snapshot in snapshots] == [7, 7]


def test_a_configuration_of_another_engine_is_not_taken():
    assert one(RUNNING, 'vllm:cache_config_info{engine="1",block_size="16"} 1').config == EngineConfig()


def test_the_api_server_speaks_for_itself():
    scrape = read(
        RUNNING,
        "process_start_time_seconds 1.7e+09",
        "process_cpu_seconds_total NaN",
        'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 5',
        'http_requests_total{handler="/invocations",method="POST",status="4xx"} 2',
        'http_requests_total{handler="/metrics",method="GET",status="2xx"} 100',
    )

    assert (scrape.process_start_time, scrape.process_cpu_seconds, scrape.http_requests) == (1.7e9, None, 5)
