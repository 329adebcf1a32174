"""One exposition per era and distribution, written from the documented names, and what must be read from it."""

from __future__ import annotations

from array import array
from pathlib import Path

from kvwatch.model import EngineConfig, EngineId, Histogram, Snapshot
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
            prompt_length_sum=3900,
            prompt_length_count=26,
            generation_length_sum=2400,
            generation_length_count=26,
            prefill_time_sum=3.25,
            prefill_time_count=26,
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
