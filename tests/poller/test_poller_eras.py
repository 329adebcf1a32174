"""One exposition per era and distribution, written from the documented names, and what must be read from it."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from kvwatch.errors import ScrapeError
from kvwatch.model import EngineConfig, EngineId, FailureReason, Histogram, Snapshot
from kvwatch.poller.vllm import parse_scrape

EXPOSITIONS = Path(__file__).parents[1] / "data" / "expositions"


def scrape(name):
    return parse_scrape((EXPOSITIONS / f"{name}.prom").read_bytes(), 7.0)


def test_every_field_of_a_late_v1_is_read():
    read = scrape("late_v1")

    assert read.snapshots == (
        Snapshot(
            engine=EngineId("demo-8b", "0"),
            at=7.0,
            running=9,
            waiting=15,
            waiting_deferred=4,
            kv_usage=0.974,
            asleep=False,
            preemptions=7,
            finished=26,
            generation_tokens=2500,
            prompt_tokens=4000,
            computed_prompt_tokens=3000,
            steps=300,
            step_tokens=6500,
            prefix_queries=5000,
            prefix_hits=1024,
            flops=None,
            time_to_first_token=Histogram((0.1, 1.0, 10.0), array("d", [10, 25, 29, 30]), 41.5),
            inter_token_latency=Histogram((0.025,), array("d", [2000, 2470]), 61.75),
            e2e_latency=Histogram((2.5,), array("d", [12, 26]), 130.0),
            prompt_lengths=Histogram((), array("d", [26]), 3900.0),
            prompt_length_sum=3900,
            prompt_length_count=26,
            generation_length_sum=2400,
            generation_length_count=26,
            prefill_time_sum=3.25,
            created=1.7959002e9,
            config=EngineConfig(
                kv_cache_size_tokens=5120,
                num_gpu_blocks=160,
                block_size=32,
                max_model_len=2048,
                cache_dtype="auto",
                gpu_memory_utilization=0.92,
                enable_prefix_caching=True,
            ),
        ),
    )
    assert (read.at, read.process_start_time, read.process_cpu_seconds) == (7.0, 1.7959e9, 12.5)


def test_requests_of_inference_handlers_are_added_up_whatever_their_status():
    assert scrape("late_v1").http_requests == 26


def test_every_signal_says_which_name_carried_it():
    sources = scrape("late_v1").sources

    assert sources["kv_usage"] == "vllm:kv_cache_usage_perc"
    assert sources["preemptions"] == "vllm:num_preemptions_total"
    assert sources["steps"] == "vllm:iteration_tokens_total_count"
    assert sources.get("time_to_first_token") == "vllm:time_to_first_token_seconds"
    assert len(sources) == 25


def test_v0_is_read_by_its_own_names_and_has_no_engine_label():
    read = scrape("v0")

    assert read.snapshots == (
        Snapshot(
            engine=EngineId("demo-8b", "0"),
            at=7.0,
            running=12,
            waiting=3,
            kv_usage=0.42,
            preemptions=51,
            finished=4,
            generation_tokens=800,
            prompt_tokens=1200,
            inter_token_latency=Histogram((0.025, 0.05), array("d", [300, 700, 796]), 20.0),
            config=EngineConfig(
                num_gpu_blocks=7281, block_size=16, cache_dtype="auto", gpu_memory_utilization=0.9, enable_prefix_caching=False
            ),
        ),
    )
    assert read.sources["kv_usage"] == "vllm:gpu_cache_usage_perc"
    assert read.sources.get("inter_token_latency") == "vllm:time_per_output_token_seconds"
    assert (read.process_start_time, read.process_cpu_seconds, read.http_requests) == (None, None, None)


def test_early_v1_is_read_by_the_gpu_names_and_its_unknown_block_count_is_absent():
    (snapshot,) = scrape("early_v1").snapshots

    assert (snapshot.kv_usage, snapshot.prefix_queries, snapshot.prefix_hits, snapshot.finished) == (0.31, 64, 16, 8)
    assert (snapshot.waiting, snapshot.waiting_deferred, snapshot.asleep) == (0, None, None)
    assert snapshot.config == EngineConfig(block_size=16, cache_dtype="auto", gpu_memory_utilization=0.9, enable_prefix_caching=True)


def test_rays_doubled_counters_count_once():
    read = scrape("ray_doubled")
    (snapshot,) = read.snapshots

    assert (snapshot.engine, snapshot.running, snapshot.kv_usage) == (EngineId("demo-8b", "0"), 8, 0.66)
    assert (snapshot.generation_tokens, snapshot.finished) == (900, 13)
    assert read.sources["generation_tokens"] == "ray_vllm_generation_tokens_total"


def test_a_ray_counter_that_never_counted_is_absent():
    (snapshot,) = scrape("ray_doubled").snapshots

    assert snapshot.preemptions is None


def test_ray_replicas_on_one_page_are_engines_of_their_own():
    snapshots = scrape("ray_replicas").snapshots

    assert [(s.engine, s.running, s.generation_tokens, s.config.num_gpu_blocks) for s in snapshots] == [
        (EngineId("demo-70b", "0"), 3, 70, None),
        (EngineId("demo-8b", "0@aaaa"), 8, 900, 200),
        (EngineId("demo-8b", "0@bbbb"), 1, 20, 100),
    ]


def test_kserves_prefix_is_seen_through():
    read = scrape("kserve")

    assert [(s.engine, s.running, s.kv_usage) for s in read.snapshots] == [(EngineId("demo-8b", "0"), 2, 0.25)]
    assert read.sources["running"] == "kserve_vllm:num_requests_running"


def test_tritons_model_label_names_the_model():
    (snapshot,) = scrape("triton").snapshots

    assert (snapshot.engine, snapshot.prompt_tokens, snapshot.generation_tokens) == (EngineId("demo", "0"), 10, 16)
    assert snapshot.running is None


def test_of_one_gauge_per_process_the_largest_is_taken():
    (snapshot,) = scrape("pid_duplicates").snapshots

    assert (snapshot.running, snapshot.kv_usage) == (6, 0.83)


def test_openmetrics_with_timestamps_and_exemplars_is_read():
    (snapshot,) = scrape("openmetrics").snapshots

    assert (snapshot.running, snapshot.waiting, snapshot.preemptions, snapshot.generation_tokens) == (4, None, 3, 77)
    assert snapshot.e2e_latency == Histogram((1.0,), array("d", [2, 5]), 9.5)
    assert snapshot.created is None


def test_data_parallel_engines_have_their_own_numbers_and_configuration():
    snapshots = scrape("dp2").snapshots

    assert [(s.engine.engine, s.running, s.kv_usage, s.config.kv_cache_size_tokens, s.config.max_model_len) for s in snapshots] == [
        ("0", 1, 0.1, 6144, 4096),
        ("1", 30, 0.99, 5120, 4096),
    ]


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        pytest.param("stats_disabled", FailureReason.STATS_DISABLED, "--disable-log-stats", id="stats-disabled"),
        pytest.param("declared_only", FailureReason.NO_VLLM_METRICS, "no engine has reported", id="families-without-samples"),
        pytest.param("sglang", FailureReason.NO_VLLM_METRICS, "SGLang", id="another-engine"),
    ],
)
def test_a_page_without_an_engine_is_refused_with_the_reason(name, reason, says):
    with pytest.raises(ScrapeError) as caught:
        scrape(name)

    assert caught.value.reason is reason
    assert says in caught.value.detail
