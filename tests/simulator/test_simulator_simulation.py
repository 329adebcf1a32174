from __future__ import annotations

import time
from dataclasses import replace

import pytest
from recorded_load import Phase, play

from kvwatch.errors import UsageError
from kvwatch.simulator.config import CPU_25M, GPU_8B, ServerConfig
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.faults import Fault, FaultSwitch, HttpFault, ScheduledFault, parse_fault, schedule
from kvwatch.simulator.load import IDLE, Arrival, Arrivals, ClosedLoop, Fixed, OpenLoop
from kvwatch.simulator.simulation import Simulation

STARVED = ServerConfig(num_gpu_blocks=160, block_size=32, max_model_len=4096)
STEADY = replace(CPU_25M, jitter=0.0, turnaround=0.0)


def storm(seed: int = 1, config: ServerConfig = STARVED) -> Simulation:
    return Simulation(config, ClosedLoop(32, Fixed(300), Fixed(200)), profile=CPU_25M, seed=seed, start_unix=1000.0)


def counters(simulation: Simulation):
    return simulation.engines[0].counters


def test_same_seed_gives_the_same_text_however_the_time_is_cut():
    one, two = storm(), storm()
    one.advance(40.0)
    for tenth in range(401):
        two.advance(tenth / 10)
    assert expose(one) == expose(two)


def test_other_seed_gives_another_run():
    one, two = storm(1), storm(2)
    one.advance(20.0)
    two.advance(20.0)
    assert expose(one) != expose(two)


def test_time_does_not_go_back():
    simulation = storm()
    simulation.advance(5.0)
    simulation.advance(3.0)
    assert simulation.now == 5.0


def test_one_request_takes_the_time_its_steps_take():
    profile = replace(STEADY, base=0.01, per_sequence=0.001, per_prefill_token=0.0001, per_prefill_pair=0.0, per_context_token=0.0)
    simulation = Simulation(STARVED, Arrivals((Arrival(0.0, 100, 3),)), profile=profile)
    simulation.advance(1.0)
    seen = counters(simulation)
    assert seen.steps == 3
    # 100 prompt tokens: 10 ms + 1 ms + 10 ms; each further token 11 ms.
    assert seen.time_to_first_token.sum == pytest.approx(0.021)
    assert seen.e2e.sum == pytest.approx(0.043)
    assert (seen.inter_token.count, seen.inter_token.sum) == (2, pytest.approx(0.022))
    assert (seen.prompt_tokens, seen.generation_tokens, seen.finished) == (100, 3, 1)
    assert (seen.step_tokens.count, seen.step_tokens.sum) == (3, 103.0)


def test_request_that_comes_during_a_step_is_in_no_gauge_until_the_next_is_over():
    profile = replace(STEADY, base=1.0, per_sequence=0.0, per_prefill_token=0.0, per_prefill_pair=0.0, per_context_token=0.0)
    simulation = Simulation(STARVED, Arrivals((Arrival(0.0, 10, 5), Arrival(0.5, 10, 5))), profile=profile)
    shown = []
    for half in (0.9, 1.1, 2.1):
        simulation.advance(half)
        shown.append(counters(simulation).gauges.running)
    assert shown == [0, 1, 2]


def test_eviction_is_counted_only_when_the_victim_gives_its_next_token():
    simulation = storm()
    engine = simulation.engines[0]
    while not any(request.preemptions for request in engine.scheduler.waiting):
        simulation.advance(simulation.now + 0.001)
    victim = next(request for request in engine.scheduler.waiting if request.preemptions)
    assert counters(simulation).preemptions == 0
    given = victim.generated
    while victim.generated == given:
        simulation.advance(simulation.now + 0.001)
    assert counters(simulation).preemptions >= 1
    assert victim.uncounted_preemptions == 0


def test_recomputed_tokens_are_in_no_token_counter():
    simulation = storm()
    simulation.advance(60.0)
    seen = counters(simulation)
    assert seen.preemptions > 20
    assert seen.prompt_tokens == 300 * seen.time_to_first_token.count
    assert seen.step_tokens.sum == seen.prompt_tokens + seen.generation_tokens


def test_closed_loop_never_has_more_requests_than_clients():
    simulation = storm()
    for second in range(60):
        simulation.advance(float(second))
        gauges = counters(simulation).gauges
        assert gauges.running + gauges.waiting <= 32
    assert counters(simulation).finished > 100


def test_open_loop_arrives_at_its_rate():
    simulation = Simulation(ServerConfig(), OpenLoop(5.0, Fixed(10), Fixed(1)), seed=3)
    simulation.advance(400.0)
    assert counters(simulation).finished == pytest.approx(2000, rel=0.07)


def test_burst_arrives_together():
    simulation = Simulation(ServerConfig(), OpenLoop(0.1, Fixed(10), Fixed(4), burst=12), profile=STEADY, seed=3)
    simulation.advance(200.0)
    assert counters(simulation).finished % 12 == 0
    assert counters(simulation).finished > 0


def test_requests_in_flight_are_answered_after_the_load_changed():
    simulation = storm()
    simulation.advance(10.0)
    simulation.set_load(IDLE)
    simulation.advance(120.0)
    gauges = counters(simulation).gauges
    assert (gauges.running, gauges.waiting, gauges.usage) == (0, 0, 0.0)
    assert counters(simulation).finished == counters(simulation).time_to_first_token.count


def test_phases_follow_one_another():
    simulation = Simulation(STARVED, profile=CPU_25M)
    end = play(simulation, [Phase(10.0, IDLE), Phase(20.0, ClosedLoop(4)), Phase(30.0, IDLE)])
    assert end == 60.0
    simulation.advance(9.9)
    assert counters(simulation).generation_tokens == 0
    simulation.advance(29.0)
    assert counters(simulation).gauges.running == 4
    simulation.advance(60.0)
    assert counters(simulation).gauges.running == 0


def test_too_long_a_prompt_is_refused_and_too_long_an_output_is_cut():
    simulation = Simulation(STARVED, Arrivals((Arrival(0.0, 4096, 1), Arrival(1.0, 4000, 500))), profile=CPU_25M)
    simulation.advance(60.0)
    assert simulation.http.responses == {"4xx": 1, "2xx": 1}
    assert counters(simulation).generation_length.sum == 96.0


def test_restart_forgets_counters_and_loses_requests():
    simulation = storm()
    simulation.advance(30.0)
    simulation.restart(replace(STARVED, max_num_seqs=8), downtime=20.0)
    assert not simulation.serving
    simulation.advance(49.0)
    assert not simulation.serving
    simulation.advance(50.0)
    assert simulation.serving
    assert simulation.started_unix == 1050.0
    assert counters(simulation).generation_tokens == 0
    simulation.advance(80.0)
    assert 0 < counters(simulation).gauges.running <= 8, "the clients came back and met the new limit"
    assert counters(simulation).preemptions == 0, "8 requests of 16 blocks fit 159"


def test_second_restart_while_down_counts_from_the_second():
    simulation = storm()
    simulation.advance(5.0)
    simulation.restart(downtime=10.0)
    simulation.advance(10.0)
    simulation.restart(downtime=10.0)
    simulation.advance(16.0)
    assert not simulation.serving
    simulation.advance(20.0)
    assert simulation.serving


def test_hang_up_while_down_does_not_keep_it_down():
    simulation = storm()
    simulation.restart(downtime=10.0)
    simulation.advance(5.0)
    simulation.abort_clients()
    simulation.advance(11.0)
    assert simulation.serving


def test_negative_downtime_is_refused():
    with pytest.raises(UsageError, match="not negative"):
        storm().restart(downtime=-1.0)


def test_freeze_stops_every_number_and_thaw_lets_them_go_on():
    simulation = storm()
    simulation.advance(20.0)
    simulation.freeze()
    simulation.advance(20.5)
    before = expose(simulation)
    simulation.advance(60.0)
    after = expose(simulation)
    moving = [line for line in after.splitlines() if line.startswith("vllm:")]
    assert moving == [line for line in before.splitlines() if line.startswith("vllm:")]
    simulation.thaw()
    simulation.advance(70.0)
    assert expose(simulation) != after
    assert counters(simulation).generation_tokens > 0


def test_frozen_engine_takes_requests_that_no_gauge_shows():
    simulation = Simulation(STARVED, profile=CPU_25M)
    simulation.freeze()
    simulation.set_load(OpenLoop(2.0, Fixed(10), Fixed(5)))
    simulation.advance(30.0)
    assert counters(simulation).gauges.waiting == 0
    simulation.thaw()
    simulation.advance(40.0)
    assert counters(simulation).finished > 30


def test_mass_abort_leaves_the_gauges_at_the_moment_before():
    simulation = storm()
    simulation.advance(30.0)
    gauges = counters(simulation).gauges
    finished = counters(simulation).finished
    simulation.abort_clients()
    simulation.advance(90.0)
    assert gauges.running > 0
    assert counters(simulation).gauges == gauges, "no step, no update"
    assert counters(simulation).finished == finished, "vLLM counts no abort for clients that hang up"
    assert simulation.engines[0].scheduler.pool.usage == 0.0
    simulation.set_load(ClosedLoop(1))
    simulation.advance(100.0)
    assert counters(simulation).gauges.running == 1


def test_engines_share_the_work():
    simulation = storm(config=replace(STARVED, data_parallel_size=2))
    simulation.advance(60.0)
    one, two = (engine.counters.finished for engine in simulation.engines)
    assert one == pytest.approx(two, rel=0.2)
    assert min(one, two) > 50


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        pytest.param("hang@30s+10s", ScheduledFault(Fault.HANG, 30.0, 10.0), id="hang"),
        pytest.param("restart@1m", ScheduledFault(Fault.RESTART, 60.0, 20.0), id="default duration"),
        pytest.param("slow@500ms+1m30s", ScheduledFault(Fault.SLOW, 0.5, 90.0), id="durations as Prometheus writes them"),
    ],
)
def test_faults_are_read_as_flags_write_them(spec, fault):
    assert parse_fault(spec) == fault


@pytest.mark.parametrize("spec", ["", "hang", "hang@", "hang@soon", "quake@3s", "hang@3s+", "hang@3s+4s+5s"])
def test_faults_that_are_none_are_named(spec):
    with pytest.raises(UsageError, match="is no fault: write KIND@START"):
        parse_fault(spec)


def test_fault_of_the_endpoint_begins_and_ends_in_virtual_time():
    simulation, switch = storm(), FaultSwitch()
    schedule(ScheduledFault(Fault.ERROR, 10.0, 5.0), simulation, switch)
    seen = []
    for second in (9.0, 10.0, 14.9, 15.0):
        simulation.advance(second)
        seen.append(switch.current)
    assert seen == [None, HttpFault.ERROR, HttpFault.ERROR, None]


def test_scheduled_freeze_ends():
    simulation = storm()
    schedule(ScheduledFault(Fault.FREEZE, 10.0, 20.0), simulation, FaultSwitch())
    simulation.advance(29.0)
    frozen = counters(simulation).generation_tokens
    simulation.advance(29.9)
    assert counters(simulation).generation_tokens == frozen
    simulation.advance(40.0)
    assert counters(simulation).generation_tokens > frozen


def test_gpu_profile_has_the_pace_of_an_8b_model_on_one_gpu():
    simulation = Simulation(ServerConfig(num_gpu_blocks=8000), ClosedLoop(32, Fixed(800), Fixed(300)), profile=GPU_8B)
    simulation.advance(60.0)
    seen = counters(simulation)
    assert 0.010 <= seen.inter_token.sum / seen.inter_token.count <= 0.025
    assert 1200 <= seen.generation_tokens / 60.0 <= 3000


@pytest.mark.parametrize("profile", [CPU_25M, GPU_8B], ids=lambda profile: profile.name)
def test_ten_minutes_of_32_clients_take_a_sixth_of_the_minute_an_hour_may_take(profile):
    simulation = Simulation(STARVED, ClosedLoop(32), profile=profile, seed=1)
    before = time.process_time()
    simulation.advance(600.0)
    assert time.process_time() - before < 10.0
    assert counters(simulation).finished > 1000


def test_an_api_server_that_cannot_keep_up_uses_one_core_and_holds_its_clients_back():
    # A step of 20 sequences takes 10 ms, its 20 tokens 40 ms in the API server: 500 tokens/s, where the engine alone gives 2 000.
    profile = replace(STEADY, base=0.01, per_sequence=0.0, per_prefill_token=0.0, per_prefill_pair=0.0, per_context_token=0.0)
    slow = replace(profile, frontend_cpu_per_token=0.002)
    simulation = Simulation(ServerConfig(), ClosedLoop(20, Fixed(16), Fixed(50)), profile=slow)
    simulation.advance(20.0)
    used, tokens = simulation.api_server.busy_seconds(20.0), counters(simulation).generation_tokens
    simulation.advance(60.0)
    assert simulation.api_server.busy_seconds(60.0) - used == pytest.approx(40.0, rel=0.01)
    assert counters(simulation).generation_tokens - tokens == pytest.approx(500 * 40, rel=0.06)


def test_a_request_is_deferred_until_its_grammar_is_compiled():
    simulation = Simulation(STARVED, profile=STEADY)
    simulation.grammar_seconds = 5.0
    simulation.set_load(Arrivals((Arrival(0.0, 100, 3), Arrival(1.0, 100, 3))))
    simulation.advance(2.0)
    assert 'vllm:num_requests_waiting_by_reason{engine="0",model_name="demo-8b",reason="deferred"} 2.0' in expose(simulation)
    assert 'vllm:num_requests_waiting_by_reason{engine="0",model_name="demo-8b",reason="capacity"} 0.0' in expose(simulation)
    assert (counters(simulation).gauges.waiting, counters(simulation).steps) == (2, 0)
    simulation.advance(5.5)
    assert (counters(simulation).gauges.waiting, counters(simulation).finished) == (1, 1)
    simulation.advance(7.0)
    seen = counters(simulation)
    assert (seen.gauges.waiting, seen.gauges.deferred, seen.finished) == (0, 0, 2)
    assert seen.queue.sum == pytest.approx(10.0)


def test_what_waits_for_a_grammar_is_lost_with_the_server():
    simulation = Simulation(STARVED, profile=STEADY)
    simulation.grammar_seconds = 5.0
    simulation.set_load(Arrivals((Arrival(0.0, 100, 3),)))
    simulation.advance(1.0)
    simulation.restart(downtime=1.0)
    simulation.advance(10.0)
    assert (counters(simulation).gauges.waiting, counters(simulation).finished) == (0, 0)
