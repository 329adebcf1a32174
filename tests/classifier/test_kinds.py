"""Each kind of server that was judged wrongly once, in sizes, rates and polls of our own: worked out, and played through the whole.

A step of a series is (seconds, gauges, what the counters gain in a second); the counters go on from step to step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from builders import ENGINE, histogram

from kvwatch.assess import Judge
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.model import Cause, EngineConfig, Scrape, Snapshot

COUNTERS = (
    "preemptions", "finished", "generation_tokens", "prompt_tokens", "steps",
    "prompt_length_sum", "generation_length_sum", "prefill_time_sum",
)  # fmt: skip
BEFORE = dict.fromkeys(COUNTERS, 1000.0) | {"prompt_length_sum": 1_000_000.0, "generation_length_sum": 400_000.0}
"""A thousand requests of 1000 + 400 tokens have come and gone."""
POOL = EngineConfig(num_gpu_blocks=6251, block_size=16)
"""100 000 tokens."""


def busy(running, usage, tokens, *, waiting=0.0, prompt=0.0, **gains):
    """A step of a batch that yields *tokens* a second in steps of *running*, and takes *prompt* tokens a second."""
    gauges = {"running": running, "waiting": waiting, "kv_usage": usage}
    return gauges, {"generation_tokens": tokens, "prompt_tokens": prompt, "steps": tokens / running if running else 0.0} | gains


def cycle(period, *steps):
    """*steps* of equal length, over and over."""
    return lambda t: steps[int(t % period / period * len(steps))]


def series(*parts) -> Iterator[tuple[float, dict, dict]]:
    """Second by second, (end, step or function of time) after one another."""
    begin = 0
    for end, step in parts:
        for t in range(begin, end):
            gauges, gains = step(t) if callable(step) else step
            yield float(t), gauges, gains
        begin = end


def play(parts, interval, known=None, config=POOL, *, start=None, prefill=1000.0):
    """Verdict and alerts at each poll; *start* says which process answers at a time, *prefill* how long all prompts took before (s)."""
    judge = Judge(Policy(), known or KnownConfig(), interval)
    totals, due, said = Counter(BEFORE | {"prefill_time_sum": prefill}), 0.0, []
    for t, gauges, gains in series(*parts):
        totals.update(gains)
        if t < due:
            continue
        due = t + interval
        counters = {name: totals[name] for name in COUNTERS}
        outputs = histogram(0, 0, totals["generation_tokens"])
        firsts = histogram(0, 0, totals["first_tokens"])
        snapshot = Snapshot(
            ENGINE,
            t,
            config=config,
            inter_token_latency=outputs,
            time_to_first_token=firsts,
            prompt_length_count=totals["finished"],
            generation_length_count=totals["finished"],
            **(gauges | counters),
        )
        found = judge.scraped(Scrape(t, (snapshot,), unix=1e9 + t, process_start_time=start(t) if start else None))
        said.append((t, found.assessments[0]))
    return said


def causes(said, begin, end):
    return {str(one.verdict.cause) for t, one in said if begin <= t < end}


IDLE = busy(0.0, 0.0, 0.0)
every = pytest.mark.parametrize("interval", [1.0, 5.0, 15.0])


@every
@pytest.mark.parametrize(
    ("running", "tokens", "gap", "pages"),
    [pytest.param(4.0, 100.0, 28, False, id="four, one preempted in 28 s"), pytest.param(12.0, 600.0, 9, True, id="twelve, one in 9 s")],
)
def test_few_long_sequences_that_are_preempted_now_and_then(running, tokens, gap, pages, interval):
    rate = 1 / gap
    said = play(((60, busy(running, 0.6, tokens)), (300, busy(running, 0.98, tokens, preemptions=rate, finished=3 * rate))), interval)
    assert causes(said, 20, 60) == {"ok"}
    assert causes(said, 60 + 2.5 * gap + interval, 300) == {"preempting"}
    paged = [one.verdict.cause for t, one in said if any(alert.name == "PreemptionStorm" for alert in one.alerts)]
    assert set(paged) == ({Cause.PREEMPTING} if pages else set())


@every
@pytest.mark.parametrize(
    ("running", "usage", "known", "cause"),
    [
        pytest.param(6.0, 0.93, None, "admission", id="six, less than half a sequence free"),
        pytest.param(40.0, 0.99, None, "admission", id="forty, less than half a sequence free"),
        pytest.param(6.0, 0.93, 6, "sequence_slots", id="all slots taken, and it is known"),
        pytest.param(40.0, 0.90, None, "sequence_slots", id="forty, four more fit"),
        pytest.param(6.0, 0.60, None, "sequence_slots", id="six, four more fit"),
    ],
)
def test_a_uniform_batch_with_a_queue_and_nothing_admitted_for_minutes(running, usage, known, cause, interval):
    said = play(
        ((20, busy(running, usage, 10 * running)), (300, busy(running, usage, 10 * running, waiting=4.0))),
        interval,
        known=KnownConfig(max_num_seqs=known),
    )
    assert causes(said, 40 + interval, 300) == {cause}


@every
@pytest.mark.parametrize(
    ("known", "said"),
    [
        pytest.param(32, "running stands at 8, below the max_num_seqs of 32 that kvwatch was given", id="given too high"),
        pytest.param(None, None, id="not given"),
    ],
)
def test_a_batch_that_stands_below_the_limit_that_was_given_is_said_to(known, said, interval):
    """Whoever typed 32 while the server runs with 8 reads it in the evidence; where nothing was given there is nothing to compare with."""
    played = play(((200, busy(8.0, 0.3, 80.0, waiting=16.0)),), interval, known=KnownConfig(max_num_seqs=known))
    found = [any(said is not None and said in line for line in one.verdict.evidence) for t, one in played if t > 60]
    assert set(found) == {said is not None}


@every
@pytest.mark.parametrize("prefix", [1000.0, 20_000.0])
def test_a_shared_prefix_is_no_need_of_the_next_admission(prefix, interval):
    """16 slots; each of them holds 300 tokens of its own, and all of them the prefix."""
    usage = (prefix + 16 * 400) / 100_000
    gains = {"finished": 2.0, "first_tokens": 2.0, "prefix_queries": 2 * prefix + 600, "prefix_hits": 2 * prefix}
    gains |= {"prompt_length_sum": 2 * prefix + 600, "generation_length_sum": 400.0}
    said = play(((200, busy(16.0, usage, 400.0, waiting=9.0, prompt=2 * prefix + 600, **gains)),), interval)
    assert causes(said, 30, 200) == {"sequence_slots"}


@every
@pytest.mark.parametrize(("running", "period"), [(8.0, 14), (5.0, 22)])
def test_preemptions_that_no_counter_shows(running, period, interval):
    """One goes back to the queue and returns; nothing finishes and no prompt ends."""
    full, less = busy(running, 0.97, running - 1), busy(running - 1, 0.93, running - 1, waiting=1.0)
    swing = cycle(period, (full[0], full[1] | {"steps": 1.0}), (less[0], less[1] | {"steps": 1.0}))
    said = play(((60, busy(running, 0.7, 10 * running)), (400, swing)), interval)
    assert causes(said, 60 + 3 * period + interval, 400) <= {"preempting", "admission"}


@every
@pytest.mark.parametrize("held", [0.1, 0.5])
def test_what_nobody_holds_is_named_and_not_charged(held, interval):
    said = play(((60, busy(0.0, held, 0.0)), (120, busy(2.0, held + 0.04, 60.0))), interval)
    idle, last = (next(one for t, one in reversed(said) if t < end) for end in (60, 120))
    assert any("of the KV cache is held although nothing runs" in line for line in idle.verdict.evidence)
    assert last.signals.tokens_per_sequence == pytest.approx(2000)
    assert last.signals.demand_ratio == pytest.approx(0.04)


@pytest.mark.parametrize("gap", [12.0, 25.0, 40.0])
def test_a_freeze_behind_slow_scrapes_is_a_stall(gap):
    frozen = busy(8.0, 0.3, 0.0)
    said = play(((60, busy(8.0, 0.3, 80.0)), (260, frozen), (400, busy(8.0, 0.3, 80.0))), gap)
    assert causes(said, 60 + 2 * gap + 15, 260) == {"stalled"}
    assert any(alert.name == "EngineStalled" for t, one in said if t >= 200 for alert in one.alerts)
    assert causes(said, 260 + gap, 400) == {"ok"}


@pytest.mark.parametrize("interval", [1.0, 5.0, 15.0, 60.0])
def test_processes_that_answer_in_turn_are_ambiguous_from_the_warm_up_on(interval):
    said = play(((int(60 * interval), busy(4.0, 0.2, 40.0)),), interval, start=lambda t: 5e8 + 100 * (t // interval % 2))
    assert causes(said, interval, 60 * interval) == {"ambiguous"}


@every
def test_an_older_process_that_answers_once_is_neither_a_restart_nor_a_storm(interval):
    """It has counted 4 000 preemptions since it started."""
    moment = 20 * interval
    older = busy(4.0, 0.9, 40.0, preemptions=0.0)
    parts = ((int(moment), busy(4.0, 0.9, 40.0)), (int(moment + interval), older), (int(40 * interval), busy(4.0, 0.9, 40.0)))
    said = play(parts, interval, start=lambda t: 5e8 if moment <= t < moment + interval else 6e8)
    assert causes(said, moment, moment + 3 * interval) == {"ambiguous"}
    assert causes(said, moment + 3 * interval, 40 * interval) <= {"ok", "kv_high"}
    assert all(not one.verdict.storm for _, one in said)


@every
def test_a_process_that_started_since_the_last_poll_warms_up(interval):
    moment = 20 * interval
    said = play(((int(40 * interval), busy(4.0, 0.2, 40.0)),), interval, start=lambda t: 5e8 if t < moment else 1e9 + moment - 0.5)
    assert causes(said, moment, moment + interval) == {"warming_up"}
    assert causes(said, moment + 8 + interval, 40 * interval) == {"ok"}


@every
@pytest.mark.parametrize(("waiting", "preemptions"), [(9.0, 0.5), (0.0, 2.0)])
def test_trouble_that_is_over_is_left_within_two_dozen_seconds_or_three_polls(waiting, preemptions, interval):
    storm = busy(10.0, 0.99, 100.0, waiting=waiting, preemptions=preemptions, finished=1.0)
    said = play(((30, busy(3.0, 0.2, 30.0)), (120, storm), (240, busy(3.0, 0.2, 30.0))), interval)
    assert causes(said, 60, 120) == {"preempting"}
    assert causes(said, 120 + max(16.0, 2 * interval) + 1, 240) == {"ok"}


@every
def test_slow_steps_of_a_healthy_server_are_no_stall(interval):
    """Twelve seconds of quiet again and again, with tokens in between: the first time it may look like a stall for a moment."""
    step = cycle(18, busy(2.0, 0.3, 0.0), busy(2.0, 0.3, 0.0), busy(3.0, 0.4, 60.0, prompt=1000.0, finished=0.1))
    said = play(((20, busy(2.0, 0.3, 20.0)), (400, step)), interval)
    assert causes(said, 150, 400) == {"ok"}
    assert sum(one.verdict.cause is Cause.STALLED for _, one in said) <= 3


@every
@pytest.mark.parametrize("running", [1.0, 6.0])
def test_an_engine_that_crawls_is_not_called_well(running, interval):
    said = play(((120, busy(running, 0.02 * running, 40 * running)), (300, busy(running, 0.02 * running, running))), interval)
    assert causes(said, 30, 120) == {"ok"}
    assert causes(said, 170 + interval, 300) == {"compute"}


@every
@pytest.mark.parametrize(("running", "prompt", "period"), [(1.0, 8000.0, 15), (2.0, 3000.0, 30), (4.0, 20_000.0, 40)])
def test_long_prompts_that_come_now_and_then_are_no_speed_of_before(running, prompt, period, interval):
    """The tokens that come out stay the same; a whole prompt is counted in the second in which it ends."""
    tokens = 50 * running
    arrival = busy(running, 0.05 * running, tokens, prompt=prompt, finished=1.0, first_tokens=1.0)
    said = play(((600, cycle(period, arrival, *[busy(running, 0.05 * running, tokens)] * (period - 1))),), interval)
    assert causes(said, 30, 600) == {"ok"}


@every
def test_deferred_requests_whose_peer_is_silent(interval):
    gauges = {"running": 0.0, "waiting": 3.0, "waiting_deferred": 3.0, "kv_usage": 0.1}
    said = play(((30, busy(2.0, 0.1, 20.0)), (200, (gauges, {}))), interval)
    assert causes(said, 30 + 15 + interval, 200) == {"stalled"}
    assert "the peer that should deliver is silent" in said[-1][1].verdict.evidence[0]


@every
def test_limits_that_alternate_do_not_keep_an_old_verdict_alive(interval):
    """A queue before a cache that is now full, now roomy: whatever it is called, it is not well."""
    roomy, full = busy(8.0, 0.5, 80.0, waiting=5.0), busy(6.0, 0.97, 60.0, waiting=5.0)
    said = play(((30, busy(3.0, 0.2, 30.0)), (300, cycle(2 * interval, roomy, full))), interval)
    assert not causes(said, 30 + 12 + 2 * interval, 300) & {"ok", "idle", "kv_high"}


@pytest.mark.parametrize("interval", [1.0, 5.0, 15.0, 60.0])
@pytest.mark.parametrize("seconds", [150, 600])
def test_a_prompt_that_takes_minutes_in_chunks_is_no_stall(seconds, interval):
    """One token at its end; until then nothing but the cache moves."""
    chunks = lambda t: ({"running": 1.0, "waiting": 2.0, "kv_usage": 0.1 + 0.8 * (t - 60) / seconds}, {})  # noqa: E731
    said = play(((60, busy(1.0, 0.1, 10.0)), (60 + seconds, chunks), (100 + seconds, busy(1.0, 0.9, 10.0))), interval)
    assert "stalled" not in causes(said, 0, 100 + seconds)


@every
def test_a_prompt_that_is_computed_again_and_again_is_a_stall(interval):
    """It nearly fills the pool every 40 s, is thrown out and starts again: no token, and no preemption is counted."""
    laps = lambda t: ({"running": 1.0, "waiting": 1.0, "kv_usage": 0.98 * ((t - 60) % 40) / 40}, {"steps": 1.0})  # noqa: E731
    said = play(((60, busy(1.0, 0.1, 10.0)), (400, laps)), interval)
    assert causes(said, 60 + 40 + 60 + 4 * interval, 400) == {"stalled"}  # by then the polls have seen its highest


@every
def test_steps_as_long_as_a_whole_prompt_are_no_stall(interval):
    """Without chunks a prompt of this server takes 25 s, and vLLM has counted that since it started.

    No gauge shows that one has come before its step ends, so the first may look like a stall.
    """
    step = cycle(50, busy(2.0, 0.4, 0.0), busy(2.0, 0.4, 60.0, prompt=1000.0, finished=0.04, prefill_time_sum=1.0))
    said = play(((50, busy(2.0, 0.4, 20.0)), (500, step)), interval, prefill=25_000.0)
    assert causes(said, 100 + 9 * interval, 500) == {"ok"}


@every
def test_slots_that_once_bound_alone_still_bind_when_the_cache_fills_up_behind_them(interval):
    """Four slots, and requests that grow until no fifth would fit: more blocks would admit nobody."""
    fills = lambda t: busy(4.0, min(0.95, 0.4 + t / 400), 40.0, waiting=3.0)  # noqa: E731
    said = play(((400, fills),), interval)
    assert causes(said, 40, 400) == {"sequence_slots"}


@every
def test_a_batch_that_swings_below_the_slots_that_once_bound_is_short_of_blocks(interval):
    slots, more = busy(6.0, 0.5, 60.0, waiting=5.0), {"waiting": 5.0, "prompt": 100.0, "finished": 0.1, "first_tokens": 0.1}
    swings = cycle(8 * interval, busy(5.0, 0.97, 50.0, **more), busy(4.0, 0.8, 40.0, **more))
    said = play(((120, slots), (600, swings)), interval)
    assert causes(said, 40, 120) == {"sequence_slots"}
    assert causes(said, 120 + 50 + 2 * interval, 600) == {"admission"}


@every
def test_one_preemption_behind_taken_slots_is_not_what_a_queue_waits_for(interval):
    """One in forty that leave: the next one would have to be preempted too before it is the cause."""
    slots = busy(10.0, 0.85, 100.0, waiting=20.0, finished=1.0)
    said = play(((60, slots), (61, busy(9.0, 0.85, 100.0, waiting=21.0, preemptions=1.0)), (200, slots)), interval)
    assert "preempting" not in causes(said, 0, 200)


@pytest.mark.parametrize("interval", [15.0, 30.0])
def test_a_storm_is_left_with_the_second_poll_that_finds_it_over(interval):
    storm = busy(10.0, 0.99, 100.0, waiting=9.0, preemptions=0.5, finished=1.0)
    said = play(((240, storm), (400, busy(3.0, 0.2, 30.0))), interval)
    assert causes(said, 240 + interval, 400) == {"ok"}


@every
def test_a_crowd_before_a_full_cache_stays_short_of_blocks_between_two_preemptions(interval):
    """Three hundred of them, and one or two are preempted every 44 s: the queue never ends."""
    crowd = [busy(running, 0.998, 2900.0, waiting=300.0 - running, finished=1.0) for running in (290.0, 270.0, 280.0, 292.0)]
    swings = cycle(44, (crowd[0][0], crowd[0][1] | {"preemptions": 0.4}), *crowd[1:], *crowd, *crowd[:3])
    said = play(((600, swings),), interval)
    assert {one.verdict.state.value for t, one in said if t > 120} == {"kv_bound"}


@every
def test_a_large_batch_that_swings_before_a_full_cache_is_short_of_blocks(interval):
    """Nearly all of the most that ever ran get tokens, but no sample with a queue finds that many: blocks, not slots."""
    most = busy(96.0, 0.75, 960.0)
    gains = {"finished": 2.0, "first_tokens": 2.0, "prompt": 1000.0}
    swings = cycle(4 * interval, *(busy(running, usage, 920.0, waiting=300.0, **gains) for running, usage in ((88.0, 0.95), (92.0, 1.0))))
    said = play(((30, most), (300, swings)), interval)
    assert causes(said, 30 + 20 + 2 * interval, 300) == {"admission"}


@every
@pytest.mark.parametrize(("usage", "cause"), [(0.3, "sequence_slots"), (0.97, "admission")])
def test_blocks_of_a_model_with_states_are_no_tokens(usage, cause, interval):
    """600 blocks of which each of eight holds some for its state, and "16" is the block of the attention layers only by name.

    Prompts of 4000 would be 41 % of 600 x 16 tokens. What the running ones hold says what one more needs.
    """
    config = EngineConfig(num_gpu_blocks=600, block_size=16, mixed_layers=True)
    gains = {"prompt": 2000.0, "finished": 0.5, "first_tokens": 0.5}
    said = play(((300, busy(8.0, usage, 80.0, waiting=6.0, **gains)),), interval, config=config)
    assert causes(said, 30, 300) == {cause}
    signals = said[-1][1].signals
    assert (signals.capacity_tokens, signals.tokens_per_sequence, signals.free_tokens) == (None, None, None)
    assert signals.sustainable_sequences == int(0.8 * 8 / usage)


@every
@pytest.mark.parametrize("leaks", [0.0, 0.0015])
def test_a_leak_in_an_engine_that_never_rests_is_named_and_not_charged(leaks, interval):
    """Three requests of 2000 + 400 tokens run, and one ends each second; 0.15 % of the pool is lost each second until none is left."""
    gains = {"finished": 1.0, "first_tokens": 1.0, "prompt": 2000.0, "prompt_length_sum": 2000.0, "generation_length_sum": 400.0}

    def leaking(t):
        usage = min(0.99, 0.07 + leaks * t)
        return busy(3.0, usage, 400.0, waiting=4.0 if usage > 0.97 else 0.0, **gains)

    said = play(((900, leaking),), interval)
    named = [t for t, one in said if any("do not explain" in line for line in one.verdict.evidence)]
    assert bool(named) is bool(leaks)
    for t, one in said:
        if t > 30:
            assert one.signals.tokens_per_sequence < 4 * 2400  # until it is known to be a leak
    if leaks:
        assert named[0] < 300
        assert causes(said, 680, 900) == {"admission"}
        assert said[-1][1].verdict.evidence[-1].endswith("by a leak, transfers, or a few far longer ones")


@every
def test_room_while_a_long_prompt_is_computed_is_no_room_for_the_next(interval):
    """One prompt at a time fills half of the pool in ten seconds and answers for ten; beside it the next is one block too long."""

    def usage(t):
        return min(0.5, 0.05 * (t % 20))

    gains = {"prompt": 2500.0, "finished": 0.05, "first_tokens": 0.05}
    said = play(((400, lambda t: busy(1.0, usage(t), 20.0, waiting=6.0, **gains)),), interval)
    assert causes(said, 60, 400) == {"admission"}


@pytest.mark.parametrize("step", [7, 8, 9])
def test_few_long_sequences_whose_steps_are_long_stay_short_of_blocks_between_two_steps(step):
    """Two prompts are computed, each in one step, and meanwhile all gauges show the batch that was left behind, in a cool cache.

    Polled each second: of such steps rarer polls see only a part.
    """
    left, one_more = busy(1.0, 0.23, 0.0), busy(2.0, 0.43, 0.0)
    thrown, full = busy(3.0, 0.7, 20.0, waiting=1.0, preemptions=1.0), busy(4.0, 0.99, 400.0, waiting=1.0)
    moves = busy(2.0, 0.43, 2.0, first_tokens=1.0, prompt=1000.0)
    lap = (thrown, *[left] * step, moves, *[one_more] * step, *[full] * 9)
    said = play(((20, busy(2.0, 0.3, 20.0)), (400, lambda t: lap[int(t) % len(lap)])), 1.0)
    assert causes(said, 150, 400) <= {"preempting", "admission"}


@every
@pytest.mark.parametrize(
    ("decoding", "known", "cause"),
    [
        pytest.param(0.0, None, "step_budget", id="alone"),
        pytest.param(2.0, None, "step_budget", id="beside two that get tokens"),
        pytest.param(0.0, 8, "step_budget", id="slots are known to be free"),
        pytest.param(0.0, 1, "sequence_slots", id="the only slot is known to be taken"),
    ],
)
def test_a_prompt_that_takes_minutes_keeps_the_next_one_out_of_the_step(decoding, known, cause, interval):
    """40 % of the pool, computed in 200 s, while three more wait: vLLM counts its tokens when it is done."""

    def chunks(t):
        gauges, gains = busy(decoding, 0.05 * decoding + 0.4 * (t - 60) / 200, 20 * decoding, waiting=3.0)
        return gauges | {"running": decoding + 1}, gains | {"steps": 20.0}

    before = busy(decoding, 0.05 * decoding, 20 * decoding)
    said = play(((60, before), (260, chunks)), interval, known=KnownConfig(max_num_seqs=known), config=EngineConfig(12_501, 16))
    assert causes(said, 60 + 45 + 2 * interval, 260) == {cause}
