"""What kvwatch's own poller reads out of a simulated server is what the simulation knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.errors import ScrapeError
from kvwatch.model import EngineId, FailureReason
from kvwatch.poller.vllm import parse_scrape
from kvwatch.simulator.config import CPU_25M, Names, ServerConfig
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.load import ClosedLoop, Fixed
from kvwatch.simulator.simulation import Simulation

STARVED = ServerConfig(num_gpu_blocks=160, block_size=32, max_model_len=4096, enable_mfu_metrics=True)


def storm(**flags) -> Simulation:
    simulation = Simulation(replace(STARVED, **flags), ClosedLoop(32, Fixed(300), Fixed(200)), profile=CPU_25M, seed=1, start_unix=1.75e9)
    simulation.advance(60.0)
    return simulation


def test_current_names_give_every_signal():
    simulation = storm()
    scrape = parse_scrape(expose(simulation).encode(), at=7.0)
    seen = simulation.engines[0].counters
    (snapshot,) = scrape.snapshots
    assert snapshot.engine == EngineId("demo-8b", "0")
    assert (snapshot.running, snapshot.waiting, snapshot.waiting_deferred) == (seen.gauges.running, seen.gauges.waiting, 0.0)
    assert snapshot.kv_usage == pytest.approx(seen.gauges.usage)
    assert (snapshot.preemptions, snapshot.finished) == (seen.preemptions, seen.finished)
    assert (snapshot.generation_tokens, snapshot.prompt_tokens) == (seen.generation_tokens, seen.prompt_tokens)
    assert snapshot.computed_prompt_tokens == seen.prompt_tokens
    assert (snapshot.steps, snapshot.step_tokens) == (seen.step_tokens.count, seen.step_tokens.sum)
    assert snapshot.flops == pytest.approx(seen.flops)
    assert snapshot.asleep is False
    assert snapshot.created == 1.75e9
    assert snapshot.time_to_first_token is not None
    assert snapshot.time_to_first_token.count == seen.time_to_first_token.count
    assert snapshot.config.kv_cache_size_tokens == 5120
    assert (snapshot.config.num_gpu_blocks, snapshot.config.block_size, snapshot.config.max_model_len) == (160, 32, 4096)
    assert scrape.process_start_time == 1.75e9
    assert scrape.http_requests == seen.finished
    assert scrape.sources["kv_usage"] == "vllm:kv_cache_usage_perc"


@pytest.mark.parametrize("names", [Names.V1_EARLY, Names.V0])
def test_old_names_give_the_same_core_numbers(names):
    simulation = storm(names=names)
    (snapshot,) = parse_scrape(expose(simulation).encode(), at=7.0).snapshots
    seen = simulation.engines[0].counters
    assert (snapshot.running, snapshot.waiting) == (seen.gauges.running, seen.gauges.waiting)
    assert snapshot.kv_usage == pytest.approx(seen.gauges.usage)
    assert (snapshot.preemptions, snapshot.finished) == (seen.preemptions, seen.finished)


def test_every_engine_is_a_snapshot_of_its_own():
    simulation = storm(data_parallel_size=3)
    scrape = parse_scrape(expose(simulation).encode(), at=7.0)
    assert [snapshot.engine.engine for snapshot in scrape.snapshots] == ["0", "1", "2"]
    assert [snapshot.finished for snapshot in scrape.snapshots] == [engine.counters.finished for engine in simulation.engines]
    assert {snapshot.config.kv_cache_size_tokens for snapshot in scrape.snapshots} == {5120}
    assert scrape.process_start_time is None, "several API servers export no process"


def test_disabled_stats_are_told_apart_from_no_server():
    with pytest.raises(ScrapeError) as error:
        parse_scrape(expose(storm(disable_log_stats=True)).encode(), at=7.0)
    assert error.value.reason is FailureReason.STATS_DISABLED
