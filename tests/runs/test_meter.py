"""Scrapes become a run; every value here is worked out from the numbers in the scrapes."""

from __future__ import annotations

import pytest

from kvwatch.config.policy import KnownConfig
from kvwatch.model import EngineConfig, EngineId, Histogram, Scrape, Snapshot
from kvwatch.runs.meter import Meter
from kvwatch.runs.run import Percentiles, Run

ENGINE = EngineId("demo-8b", "0")
OTHER = EngineId("demo-8b", "1")


def snapshot(at, engine=ENGINE, **numbers):
    return Snapshot(engine, at, **numbers)


def measured(*scrapes, known=None):
    meter = Meter(known or KnownConfig())
    for snapshots in scrapes:
        meter.add(Scrape(snapshots[0].at, tuple(snapshots)))
    return meter.run("test")


def test_rates_are_increases_over_the_run_and_gauges_are_means():
    run = measured(
        [snapshot(0.0, generation_tokens=100.0, prompt_tokens=50.0, finished=1.0, preemptions=0.0, running=4.0, waiting=0.0)],
        [snapshot(50.0, generation_tokens=600.0, prompt_tokens=150.0, finished=6.0, preemptions=2.0, running=8.0, waiting=2.0)],
        [snapshot(100.0, generation_tokens=1100.0, prompt_tokens=550.0, finished=31.0, preemptions=10.0, running=6.0, waiting=4.0)],
    )
    assert run.seconds == 100.0
    assert run.lines.generated_tokens_per_second == 10.0
    assert run.lines.total_tokens_per_second == 15.0
    assert run.lines.preemption_ratio == 10 / 40  # 10 preempted, 30 finished, more than the 6 that run
    assert run.conditions.requests == 30.0
    assert (run.conditions.mean_running, run.conditions.mean_waiting, run.conditions.concurrency) == (6.0, 2.0, 8.0)


def test_a_restart_counts_from_zero_and_is_told():
    run = measured(
        [snapshot(0.0, generation_tokens=1000.0, finished=10.0)],
        [snapshot(10.0, generation_tokens=1500.0, finished=15.0)],
        [snapshot(20.0, generation_tokens=200.0, finished=2.0)],
    )
    assert run.lines.generated_tokens_per_second == (500 + 200) / 20
    assert run.conditions.requests == 7.0
    assert run.conditions.restarts == 1


def test_engines_of_one_server_are_added_up():
    run = measured(
        [
            snapshot(0.0, generation_tokens=0.0, running=3.0, waiting=0.0),
            snapshot(0.0, OTHER, generation_tokens=0.0, running=5.0, waiting=1.0),
        ],
        [
            snapshot(10.0, generation_tokens=40.0, running=3.0, waiting=0.0),
            snapshot(10.0, OTHER, generation_tokens=60.0, running=5.0, waiting=1.0),
        ],
    )
    assert run.lines.generated_tokens_per_second == 10.0
    assert run.conditions.engines == 2
    assert run.conditions.concurrency == 9.0


def test_percentiles_come_from_the_buckets_of_the_run_alone():
    def histogram(*counts):
        return Histogram((1.0, 2.0, 4.0), [float(count) for count in counts], None)

    run = measured(
        [snapshot(0.0, time_to_first_token=histogram(50, 50, 50, 50))],
        [snapshot(10.0, time_to_first_token=histogram(50, 150, 150, 150))],
    )
    assert run.lines.time_to_first_token == Percentiles(1.5, 1.95, 1.99)  # 100 observations, all between 1 and 2 s


def test_what_a_server_does_not_export_is_absent():
    run = measured([snapshot(0.0, generation_tokens=0.0)], [snapshot(10.0, generation_tokens=10.0)])
    assert run.lines.preemption_ratio is None
    assert run.lines.total_tokens_per_second is None
    assert run.lines.e2e_latency == Percentiles()
    assert run.conditions.mean_prompt_tokens is None


def test_conditions_hold_what_is_known_of_the_server():
    config = EngineConfig(num_gpu_blocks=161, block_size=32)
    run = measured(
        [snapshot(0.0, generation_tokens=0.0, config=config, prompt_length_sum=0.0, prompt_length_count=0.0)],
        [snapshot(10.0, generation_tokens=1.0, config=config, prompt_length_sum=900.0, prompt_length_count=3.0)],
        known=KnownConfig(max_num_seqs=64, vllm_version="0.32.0"),
    )
    assert run.conditions.kv_capacity_tokens == 5120
    assert run.conditions.mean_prompt_tokens == 300.0
    assert (run.conditions.max_num_seqs, run.conditions.vllm_version) == (64, "0.32.0")


@pytest.mark.parametrize("scrapes", [[], [[snapshot(0.0, generation_tokens=1.0)]]])
def test_one_scrape_is_no_run(scrapes):
    with pytest.raises(ValueError, match="fewer than two scrapes"):
        measured(*scrapes)


def test_a_run_survives_its_json():
    run = measured(
        [snapshot(0.0, generation_tokens=0.0, finished=0.0, preemptions=0.0, running=1.0, waiting=0.0)],
        [snapshot(10.0, generation_tokens=90.0, finished=9.0, preemptions=1.0, running=1.0, waiting=0.0)],
    )
    assert Run.from_json(run.as_json(), "test") == run
