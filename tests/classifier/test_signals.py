from __future__ import annotations

from dataclasses import replace

import pytest
from builders import histogram, snapshot

from kvwatch.classifier.history import History
from kvwatch.classifier.saturation import ThroughputCurve
from kvwatch.classifier.signals import derive
from kvwatch.config.policy import KnownConfig, Policy


def signals_of(*snapshots, capacity=10_000, known=None, curve=None, interval=5.0):
    history = History(120.0, fine=35.0, max_gap=20.0)
    for one in snapshots:
        history.append(one)
    return derive(
        history, Policy(), interval=interval, capacity_tokens=capacity, known=known or KnownConfig(), curve=curve or ThroughputCurve()
    )


def test_tokens_of_the_pool_are_shared_out_by_what_runs():
    # 4 sequences hold 60 % of 10 000 tokens: 1 500 each. 4 000 are free. 10 requests want 15 000 tokens, 1.5 pools.
    # With 20 % headroom 10 000 / 1 500 x 0.8 = 5.33 fit.
    found = signals_of(*(snapshot(t, running=4.0, waiting=6.0, kv_usage=0.6) for t in (0, 5, 10)))
    assert (found.tokens_per_sequence, found.free_tokens) == (pytest.approx(1500), pytest.approx(4000))
    assert (found.demand_ratio, found.sustainable_sequences) == (pytest.approx(1.5), 5)


def test_without_a_pool_size_there_are_no_tokens_to_speak_of():
    found = signals_of(*(snapshot(t, running=4.0, waiting=6.0, kv_usage=0.6) for t in (0, 5, 10)), capacity=None)
    assert [found.tokens_per_sequence, found.free_tokens, found.demand_ratio, found.sustainable_sequences] == [None] * 4


def test_an_idle_engine_has_no_demand_and_no_tokens_per_sequence():
    found = signals_of(*(snapshot(t) for t in (0, 5, 10)))
    assert (found.demand_ratio, found.tokens_per_sequence, found.idle) == (0.0, None, True)


def test_two_gaps_between_waves_of_requests_are_not_rest():
    assert not signals_of(snapshot(0), snapshot(5, generation_tokens=800.0)).idle


def test_the_next_prompt_is_as_long_as_those_admitted_lately():
    # 3 000 prompt tokens came with 2 first tokens, though the requests that finished had prompts of 100.
    found = signals_of(
        snapshot(0, prompt_tokens=500.0, time_to_first_token=histogram(1, 1, 5), prompt_length_sum=100.0, prompt_length_count=1.0),
        snapshot(5, prompt_tokens=3500.0, time_to_first_token=histogram(1, 1, 7), prompt_length_sum=300.0, prompt_length_count=3.0),
    )
    assert found.next_prompt_tokens == 1500


def test_where_nothing_was_admitted_the_finished_requests_tell_the_prompt_length():
    found = signals_of(
        snapshot(0, prompt_length_sum=100.0, prompt_length_count=1.0), snapshot(5, prompt_length_sum=700.0, prompt_length_count=3.0)
    )
    assert found.next_prompt_tokens == 300


def test_sequences_per_step_come_from_what_was_handed_out():
    # 300 inter-token latencies and 20 first tokens in 100 steps: 3.2 sequences a step, whatever the gauge caught.
    found = signals_of(
        snapshot(0, steps=0.0, inter_token_latency=histogram(0, 0, 0), time_to_first_token=histogram(0, 0, 0), running=1.0),
        snapshot(5, steps=100.0, inter_token_latency=histogram(0, 0, 300), time_to_first_token=histogram(0, 0, 20), running=1.0),
    )
    assert found.sequences_decoding == pytest.approx(3.2)
    assert found.running_ceiling == pytest.approx(3.2)


def test_where_no_steps_are_counted_the_time_spent_tells_how_many_decode():
    # Little's law: 12 s of inter-token latency and 3 s of prefill in 5 s are 2.4 sequences decoding and 3 that hold blocks.
    found = signals_of(
        snapshot(0, steps=None, inter_token_latency=histogram(0, 0, 0, total=8.0), prefill_time_sum=1.0, running=3.0),
        snapshot(5, steps=None, inter_token_latency=histogram(0, 0, 300, total=20.0), prefill_time_sum=4.0, running=2.0),
    )
    assert found.sequences_decoding == pytest.approx(2.4)
    assert found.sequences_held == pytest.approx(3.0)


def test_a_clock_that_jumped_makes_no_batch():
    found = signals_of(
        snapshot(0, steps=None, inter_token_latency=histogram(0, 0, 0, total=8.0), running=3.0),
        snapshot(5, steps=None, inter_token_latency=histogram(0, 0, 300, total=90_000.0), running=3.0),
    )
    assert (found.sequences_decoding, found.sequences_held) == (None, None)


def test_steps_that_two_api_servers_counted_are_told_by_the_time_spent():
    # 8 sequences decode; 200 counted steps with 4 outputs each are 100 steps with 8, of 512 tokens.
    found = signals_of(
        snapshot(0, steps=0.0, step_tokens=0.0, inter_token_latency=histogram(0, 0, 0, total=0.0), running=8.0),
        snapshot(5, steps=200.0, step_tokens=51_200.0, inter_token_latency=histogram(0, 0, 800, total=40.0), running=8.0),
    )
    assert found.sequences_decoding == pytest.approx(8.0)
    assert found.tokens_per_step == pytest.approx(512.0)


def test_what_the_operator_knows_goes_before_what_was_seen():
    found = signals_of(
        *(snapshot(t, running=6.0, waiting=1.0) for t in (0, 5)), known=KnownConfig(max_num_seqs=8, max_num_batched_tokens=2048)
    )
    assert (found.running_ceiling, found.at_ceiling_share, found.step_token_budget) == (8, 0.0, 2048)


def test_only_samples_with_a_queue_say_where_running_stands():
    found = signals_of(*(snapshot(t, running=r, waiting=w) for t, r, w in ((0, 8.0, 3.0), (5, 2.0, 0.0), (10, 8.0, 1.0), (15, 7.0, 2.0))))
    assert (found.running_ceiling, found.at_ceiling_share) == (8, pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("usages", "seconds"),
    [
        pytest.param((0.2, 0.3, 0.4, 0.5), 25.0, id="2 points a second: half the pool lasts 25 s"),
        pytest.param((0.5, 0.5, 0.5, 0.5), None, id="level"),
        pytest.param((0.5, 0.4, 0.3, 0.2), None, id="falling"),
        pytest.param((0.5, 0.9), None, id="two points always make a line"),
    ],
)
def test_seconds_to_full_follow_the_fill_rate(usages, seconds):
    found = signals_of(*(snapshot(5.0 * i, kv_usage=usage, running=1.0) for i, usage in enumerate(usages)))
    assert found.seconds_to_full == (seconds if seconds is None else pytest.approx(seconds))


def test_each_eviction_throws_away_one_sequence_of_work():
    # 10 preemptions of 1 000 tokens each among 20 000 tokens of new work: 10 000 of 30 000 computed tokens were redone.
    found = signals_of(
        snapshot(0, running=5.0, kv_usage=0.5, preemptions=0.0, prompt_tokens=0.0, generation_tokens=0.0),
        snapshot(5, running=5.0, kv_usage=0.5, preemptions=10.0, prompt_tokens=15_000.0, generation_tokens=5_000.0),
    )
    assert found.recompute_ratio == pytest.approx(1 / 3)


def test_prefix_hits_are_a_share_of_the_queries_of_the_window():
    found = signals_of(snapshot(0, prefix_queries=1000.0, prefix_hits=900.0), snapshot(5, prefix_queries=2000.0, prefix_hits=1000.0))
    assert found.prefix_hit_ratio == pytest.approx(0.1)


def test_the_windows_are_recent_fast_and_slow():
    found = signals_of(*(snapshot(float(t), preemptions=float(t)) for t in range(0, 200, 5)))
    # The slow one begins at a snapshot that is kept at or before its edge.
    assert (found.recent.seconds, found.fast.seconds, found.slow.seconds) == (15, 30, 120)
    assert (found.recent.preemptions, found.fast.preemptions, found.slow.preemptions) == (15, 30, 120)


def test_windows_reach_at_least_over_one_poll_that_is_slower_than_they_are_long():
    history = History(120.0, fine=180.0, max_gap=240.0)
    for t in range(0, 300, 60):
        history.append(snapshot(float(t)))
    found = derive(history, Policy(), interval=60.0, capacity_tokens=None, known=KnownConfig(), curve=ThroughputCurve())
    assert (found.recent.samples, found.fast.samples) == (2, 3)


def curve_of(*points, each=4):
    """A curve that has seen each (running, tokens per second) several times."""
    curve = ThroughputCurve()
    for running, rate in points:
        before = snapshot(0, running=running, generation_tokens=0.0)
        for _ in range(each):
            curve.note(before, replace(before, at=1.0, generation_tokens=float(rate)))
    return curve


@pytest.mark.parametrize(
    ("points", "running", "rate", "saturated"),
    [
        pytest.param(((16, 1000), (32, 1900)), 32, 1900, False, id="twice the batch, nearly twice the tokens"),
        pytest.param(((16, 1000), (64, 1050)), 64, 1050, True, id="four times the batch, the same tokens"),
        pytest.param(((40, 1000),), 64, 1000, False, id="the batch has not grown enough to tell"),
        pytest.param(((2, 1000), (12, 1000)), 12, 1000, False, id="a handful of requests is no batch"),
        pytest.param(((4, 900),), 40, 950, False, id="four requests say little about a processor"),
    ],
)
def test_saturation_is_a_larger_batch_without_more_tokens(points, running, rate, saturated):
    assert (curve_of(*points).saturation(running, rate, 0.0) is not None) is saturated


def test_a_level_seen_once_is_no_evidence():
    assert curve_of((16, 1000), each=1).saturation(64, 1000, 0.0) is None


def test_decoding_is_not_compared_with_prefill():
    assert curve_of((16, 1000)).saturation(64, 1000, 0.8) is None
