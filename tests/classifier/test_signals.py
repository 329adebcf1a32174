from __future__ import annotations

from dataclasses import replace

import pytest
from builders import histogram, snapshot

from kvwatch.capacity.pool_fit import PoolShape
from kvwatch.classifier.history import History
from kvwatch.classifier.saturation import ThroughputCurve, Work
from kvwatch.classifier.signals import derive
from kvwatch.config.policy import KnownConfig, Policy


def signals_of(*snapshots, capacity=10_000, known=None, curve=None, interval=5.0, shape=None, max_gap=20.0):
    history = History(120.0, fine=35.0, max_gap=max_gap)
    for one in snapshots:
        history.append(one)
    return derive(
        history,
        Policy(),
        interval=interval,
        capacity_tokens=capacity,
        known=known or KnownConfig(),
        curve=curve or ThroughputCurve(),
        shape=shape,
    )


def test_tokens_of_the_pool_are_shared_out_by_what_runs():
    # 4 sequences hold 60 % of 10 000 tokens: 1 500 each. 4 000 are free. 10 requests want 15 000 tokens, 1.5 pools.
    # With 20 % headroom 10 000 / 1 500 x 0.8 = 5.33 fit.
    found = signals_of(*(snapshot(t, running=4.0, waiting=6.0, kv_usage=0.6) for t in (0, 5, 10)))
    assert (found.tokens_per_sequence, found.free_tokens) == (pytest.approx(1500), pytest.approx(4000))
    assert (found.demand_ratio, found.sustainable_sequences) == (pytest.approx(1.5), 5)


@pytest.mark.parametrize("interval", [1, 5, 15, 60])
@pytest.mark.parametrize("ago", range(4))
@pytest.mark.parametrize(("usual", "seldom", "lasting"), [(11.0, 0.0, 1.5), (0.0, 46.0, 0.4)])
def test_a_single_scrape_neither_ends_nor_makes_a_lasting_demand(usual, seldom, lasting, ago, interval):
    # 4 sequences hold 40 % of the pool: 15 requests want 1.5 pools, 4 want 0.4. Whichever of four minutes saw something else.
    last = 240 // interval
    pages = [snapshot(t * interval, running=4.0, waiting=seldom if t == last - ago else usual, kv_usage=0.4) for t in range(last + 1)]
    found = signals_of(*pages, interval=float(interval), max_gap=4.0 * interval)
    assert found.lasting_demand_ratio == pytest.approx(lasting)
    assert found.demand_ratio == pytest.approx((4.0 + (usual if ago else seldom)) / 10)


@pytest.mark.parametrize("unknown", [{"running": None}, {"waiting": None}])
def test_without_knowing_who_runs_and_who_waits_there_is_no_demand(unknown):
    found = signals_of(*(snapshot(t, **({"running": 4.0, "waiting": 6.0, "kv_usage": 0.6} | unknown)) for t in (0, 5, 10)))
    assert (found.demand_ratio, found.lasting_demand_ratio) == (None, None)


def test_without_a_pool_size_there_are_no_tokens_to_speak_of_but_shares_of_it():
    # A sequence holds 60 % / 4 = 15 %: 1 / 0.15 x 0.8 = 5.33 fit with headroom.
    found = signals_of(*(snapshot(t, running=4.0, waiting=6.0, kv_usage=0.6) for t in (0, 5, 10)), capacity=None)
    assert [found.tokens_per_sequence, found.free_tokens, found.demand_ratio, found.sustainable_sequences] == [None, None, None, 5]


SERVED = {"prompt_length_sum": 300.0, "prompt_length_count": 1.0, "generation_length_sum": 100.0, "generation_length_count": 1.0}


@pytest.mark.parametrize(
    ("running", "usage", "fixed", "fit"),
    [
        # a request of 400 tokens takes 25 blocks of 16, and 50 whatever its length: 1000 / 75
        pytest.param(0.0, 0.0, 50, 13, id="nothing runs: by the mean request"),
        pytest.param(8.0, 0.52, 50, 13, id="those that run hold 15 blocks of tokens each: no more than the mean"),
        # 100 blocks each, 50 of them for tokens: 800 tokens now, 850 at their end are 54 blocks: 1000 / 104
        pytest.param(8.0, 0.8, 50, 9, id="those that run are longer than the mean"),
        pytest.param(0.0, 0.0, 0, 36, id="one kind of layer: 14 576 tokens / 400"),
    ],
)
def test_blocks_a_request_holds_whatever_its_length_are_counted_for_each(running, usage, fixed, fit):
    pages = [snapshot(t, running=running, kv_usage=usage, **SERVED) for t in (0, 5, 10)]
    found = signals_of(*pages, capacity=14_576, shape=PoolShape(1000, 16, fixed))
    assert found.sustainable_sequences == fit


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


@pytest.mark.parametrize(
    ("batch", "given", "plateau"),
    [
        pytest.param((8.0, 8.0, 8.0), 32, 8.0, id="below the limit all the time"),
        pytest.param((8.0, 7.0, 8.0), 32, None, id="not all the time"),
        pytest.param((8.0, 8.0, 8.0), 8, None, id="at the limit"),
        pytest.param((255.0, 255.0, 255.0), 256, None, id="one slot being refilled is at the limit"),
        pytest.param((8.0, 8.0, 8.0), None, None, id="no limit given"),
        pytest.param((0.0, 0.0, 0.0), 32, None, id="nothing runs"),
    ],
)
def test_a_plateau_is_a_batch_that_stands_below_the_limit_that_was_given(batch, given, plateau):
    shots = [snapshot(5.0 * n, running=running, waiting=3.0) for n, running in enumerate(batch)]
    assert signals_of(*shots, known=KnownConfig(max_num_seqs=given)).running_plateau == plateau


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


def test_polls_every_second_fill_the_windows_to_the_second():
    found = signals_of(*(snapshot(float(t)) for t in range(200)), interval=1.0)
    assert (found.recent.seconds, found.fast.seconds) == (15, 30)


@pytest.mark.parametrize(("running", "share", "plateau"), [(49.0, 1.0, None), (48.9, 0.0, 48.9)])
def test_a_batch_two_percent_below_the_limit_stands_at_it(running, share, plateau):
    found = signals_of(*(snapshot(t, running=running, waiting=1.0) for t in (0, 5)), known=KnownConfig(max_num_seqs=50))
    assert (found.at_ceiling_share, found.running_plateau) == (share, plateau)


@pytest.mark.parametrize(
    ("usage", "preemptions", "generated", "ratio"),
    [
        pytest.param(0.5, 0.0, 100.0, 0.0, id="nobody was preempted"),
        pytest.param(None, 1.0, 100.0, None, id="what a sequence holds is not known"),
        pytest.param(0.5, None, 100.0, None, id="preemptions are not reported"),
        pytest.param(0.5, 1.0, None, None, id="tokens are not reported"),
        pytest.param(0.5, 1.0, 0.0, 1.0, id="nothing else was computed"),
        pytest.param(0.0, 1.0, 0.0, None, id="nothing was computed at all"),
    ],
)
def test_what_share_of_the_work_was_done_before(usage, preemptions, generated, ratio):
    ends = [{"preemptions": 0.0, "generation_tokens": 0.0}, {"preemptions": preemptions, "generation_tokens": generated}]
    found = signals_of(*(snapshot(5.0 * n, running=5.0, kv_usage=usage, **end) for n, end in enumerate(ends)))
    assert found.recompute_ratio == ratio


def test_windows_reach_at_least_over_one_poll_that_is_slower_than_they_are_long():
    history = History(120.0, fine=180.0, max_gap=240.0)
    for t in range(0, 300, 60):
        history.append(snapshot(float(t)))
    found = derive(history, Policy(), interval=60.0, capacity_tokens=None, known=KnownConfig(), curve=ThroughputCurve())
    assert (found.recent.samples, found.fast.samples) == (2, 3)


def curve_of(*points, each=4, at=0.0, usage=0.0):
    """A curve that has seen each (running, tokens per second) several times."""
    curve = ThroughputCurve()
    for running, rate in points:
        before = snapshot(at, running=running, generation_tokens=0.0, kv_usage=usage)
        for _ in range(each):
            curve.note(before, replace(before, at=at + 1.0, generation_tokens=float(rate)))
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
    assert (curve_of(*points).saturation(Work(running, rate, 0.0), None) is not None) is saturated


@pytest.mark.parametrize(
    ("level", "running", "rate", "saturated"),
    [
        pytest.param((8, 1000), 16, 1000, True, id="sixteen against eight"),
        pytest.param((8, 1000), 15, 1000, False, id="fifteen are no batch"),
        pytest.param((7, 1000), 16, 1000, False, id="seven are no batch to compare with"),
        pytest.param((10, 1000), 18, 1000, True, id="1.8 times as many"),
        pytest.param((10, 1000), 17, 1000, False, id="not 1.8 times as many"),
        pytest.param((16, 1000), 64, 1099, True, id="not a tenth more"),
        pytest.param((16, 1000), 64, 1101, False, id="more than a tenth more"),
    ],
)
def test_what_is_a_larger_batch_and_what_is_no_more(level, running, rate, saturated):
    assert (curve_of(level).saturation(Work(running, rate, 0.0), None) is not None) is saturated


@pytest.mark.parametrize(("share", "like"), [(0.0, True), (0.19, True), (0.2, True), (0.21, False)])
def test_only_like_mixtures_of_prompt_and_output_are_compared(share, like):
    assert (curve_of((16, 1000)).saturation(Work(64, (1 - share) * 1000, share), None) is not None) is like
    assert (curve_of((16, 1000)).slowdown(Work(64, 100, share), None) is not None) is like


@pytest.mark.parametrize(("each", "found"), [(1, False), (2, False), (3, True)])
def test_a_level_seen_once_or_twice_is_no_evidence(each, found):
    assert (curve_of((16, 1000), each=each).saturation(Work(64, 1000, 0.0), None) is not None) is found
    assert (curve_of((16, 1000), each=each).slowdown(Work(64, 100, 0.0), None) is not None) is found


def test_decoding_is_not_compared_with_prefill():
    assert curve_of((16, 1000)).saturation(Work(64, 200, 0.8), None) is None


def test_long_contexts_are_not_compared_with_short_ones():
    # 16 sequences held 1 % of the pool each; now 64 hold 1 %, or 2 %.
    short = curve_of((16, 1000), usage=0.16)
    assert short.saturation(Work(64, 1000, 0.0), 0.01) is not None
    assert short.saturation(Work(64, 1000, 0.0), 0.02) is None


def test_what_was_achieved_hours_ago_is_forgotten():
    curve = curve_of((16, 1000))
    now = snapshot(2 * 3600.0, running=64.0, generation_tokens=0.0)
    for _ in range(4):
        curve.note(now, replace(now, at=now.at + 1.0, generation_tokens=1000.0))
    assert curve.saturation(Work(64, 1000, 0.0), None) is None


@pytest.mark.parametrize(("seconds", "known"), [(30, False), (35, True)])
def test_a_window_that_begins_with_the_end_of_a_stall_tells_no_speed(seconds, known):
    """800 tokens a second once, 10 since: no slowdown is named before the whole fast window lies after the stall."""
    busy = {"running": 8.0, "kv_usage": 0.3}
    before = [snapshot(t, generation_tokens=0.0 if t < 5 else 50.0, **busy) for t in range(0, 60, 5)]
    after = [snapshot(60 + t, generation_tokens=100.0 + 10.0 * t, **busy) for t in range(0, seconds + 5, 5)]
    found = signals_of(*before, *after, curve=curve_of((8, 800), usage=0.3))
    assert (found.slowdown is not None) is known


@pytest.mark.parametrize(("decoding", "prefilling"), [(48, 2.0), (49, 0.0), (50, 0.0)])
def test_a_fiftieth_of_the_batch_without_a_token_is_none_in_prefill(decoding, prefilling):
    step = {"steps": 0.0, "inter_token_latency": histogram(0, 0, 0), "running": 50.0, "waiting": 1.0}
    found = signals_of(snapshot(0, **step), snapshot(5, **(step | {"steps": 10.0, "inter_token_latency": histogram(0, 0, 10 * decoding)})))
    assert found.sequences_prefilling == prefilling


@pytest.mark.parametrize(
    ("running", "rate", "crawls"),
    [
        pytest.param(8, 100, True, id="an eighth of what as many achieved"),
        pytest.param(8, 200, True, id="a quarter"),
        pytest.param(8, 201, False, id="more than a quarter"),
        pytest.param(4, 100, False, id="fewer run than then"),
    ],
)
def test_a_batch_that_yields_a_fraction_of_its_own_past_crawls(running, rate, crawls):
    curve = curve_of((8, 800), each=4)
    assert (curve.slowdown(Work(running, rate, 0.0), None) is not None) is crawls


def test_the_past_of_a_crawling_engine_is_not_overwritten_by_its_present():
    curve = curve_of((8, 800), each=30)
    before = snapshot(10.0, running=8.0, generation_tokens=0.0)
    for _ in range(60):
        curve.note(before, replace(before, at=11.0, generation_tokens=10.0))
    assert curve.slowdown(Work(8, 10, 0.0), None) is not None


def test_what_is_held_at_rest_is_not_charged_to_those_that_run():
    # 35 % are held while nothing runs; two sequences then hold 10 % more between them.
    found = signals_of(
        *(snapshot(t, kv_usage=0.35) for t in (0, 5, 10)), *(snapshot(t, running=2.0, kv_usage=0.45) for t in (15, 20)), capacity=100_000
    )
    assert (found.held_at_rest, found.sequence_share) == (0.35, pytest.approx(0.05))
    assert found.tokens_per_sequence == pytest.approx(5_000)
    assert found.demand_ratio == pytest.approx(0.1)


def test_what_is_held_at_rest_is_never_more_than_what_is_held():
    found = signals_of(*(snapshot(t, kv_usage=0.35) for t in (0, 5)), snapshot(10, running=1.0, kv_usage=0.2))
    assert found.held_at_rest == 0.2


@pytest.mark.parametrize(
    ("after", "seen"),
    [
        pytest.param({"running": 7.0, "waiting": 1.0}, 1.0, id="one went back to the queue"),
        pytest.param({"running": 6.0, "waiting": 1.0}, 1.0, id="another one left without finishing: aborted"),
        pytest.param({"running": 7.0, "waiting": 1.0, "finished": 1.0}, None, id="one finished, and another came"),
        pytest.param({"running": 7.0}, None, id="one was aborted"),
        pytest.param({"waiting": 2.0}, None, id="two came"),
        pytest.param({"running": 7.0, "waiting": 1.0, "preemptions": 3.0}, 3.0, id="the counter says more"),
    ],
)
def test_a_request_that_goes_back_to_the_queue_of_a_full_cache_was_preempted(after, seen):
    full = {"running": 8.0, "kv_usage": 0.95}
    found = signals_of(snapshot(0, **full), snapshot(5, **(full | after)))
    assert (found.preempted or None) == seen


def test_below_a_nearly_full_cache_nobody_is_preempted_for_want_of_blocks():
    found = signals_of(snapshot(0, running=8.0, kv_usage=0.79), snapshot(5, running=7.0, waiting=1.0, kv_usage=0.7))
    assert not found.preempted


def test_where_preemptions_are_not_counted_those_seen_count():
    full = {"running": 8.0, "kv_usage": 0.95, "preemptions": None}
    found = signals_of(snapshot(0, **full), snapshot(5, **(full | {"running": 6.0, "waiting": 2.0})))
    assert (found.preempted, found.preempted_lately) == (2.0, 2.0)
    assert found.preempted_share == pytest.approx(2 / 7)
    assert signals_of(snapshot(0, **full), snapshot(5, **full)).preempted is None


def test_the_queue_and_a_cool_cache_are_timed_from_the_first_scrape_that_found_them():
    busy = {"running": 4.0, "kv_usage": 0.4}
    queued = signals_of(snapshot(0, **busy), *(snapshot(t, waiting=1.0, **busy) for t in (5, 10, 15)))
    assert (queued.queued_seconds, queued.cool_seconds) == (10, None)
    cool = signals_of(snapshot(0, waiting=1.0, **busy), *(snapshot(t, **busy) for t in (5, 10, 15)))
    assert (cool.queued_seconds, cool.cool_seconds) == (0, 10)
    assert signals_of(snapshot(0, **busy), snapshot(5, **(busy | {"kv_usage": 0.7}))).cool_seconds is None
    assert signals_of(snapshot(0, **busy), snapshot(5, preemptions=1.0, **busy)).cool_seconds == 0


@pytest.mark.parametrize(("now", "found"), [(0.8, False), (0.975, True), (0.98, True), (0.99, False)])
def test_mixtures_are_alike_by_the_share_of_decoded_tokens_too(now, found):
    """16 running got 20 decoded tokens a second beside 980 of prompts; 64 get the same in all. 2 % are not like 20 % and not like 1 %."""
    curve, before = ThroughputCurve(), snapshot(0.0, running=16.0)
    for _ in range(4):
        curve.note(before, replace(before, at=1.0, generation_tokens=20.0, prompt_tokens=980.0))
    assert (curve.saturation(Work(64, (1 - now) * 1000, now), None) is not None) is found


def test_sequences_without_a_token_where_no_prompt_ends_are_computed_again():
    # 8 run, 7 tokens a step.
    step = {"steps": 0.0, "inter_token_latency": histogram(0, 0, 0), "running": 8.0, "kv_usage": 0.95}
    thrash = signals_of(snapshot(0, **step), snapshot(5, **(step | {"steps": 10.0, "inter_token_latency": histogram(0, 0, 70)})))
    assert thrash.sequences_recomputing == pytest.approx(1.0)
    fresh = step | {"steps": 10.0, "inter_token_latency": histogram(0, 0, 70), "prompt_tokens": 500.0}
    assert signals_of(snapshot(0, **step), snapshot(5, **fresh)).sequences_recomputing is None


def test_the_second_lowest_usage_at_the_ceiling_tells_what_was_free_when_the_slots_were_taken():
    usages = ((0.3, 8.0, 2.0), (0.5, 8.0, 2.0), (0.9, 8.0, 2.0), (0.1, 5.0, 2.0), (0.2, 8.0, 0.0))
    found = signals_of(*(snapshot(5.0 * i, running=running, waiting=waiting, kv_usage=u) for i, (u, running, waiting) in enumerate(usages)))
    assert found.usage_at_ceiling == 0.5
    assert signals_of(snapshot(0), snapshot(5, running=8.0, waiting=1.0, kv_usage=0.5)).usage_at_ceiling is None


def test_blocks_a_prefill_server_holds_for_its_peer_are_no_part_of_a_request():
    # Two prompts of 1 000 tokens run, one token each; finished ones still hold the rest of 9 000: 4 500 a piece, did they hold it.
    lengths = {"prompt_length_sum": 50_000.0, "prompt_length_count": 50.0, "generation_length_sum": 50.0, "generation_length_count": 50.0}
    found = signals_of(*(snapshot(t, running=2.0, waiting=0.0, kv_usage=0.9, **lengths) for t in (0, 5, 10)))
    assert (found.tokens_per_sequence, found.demand_ratio, found.sustainable_sequences) == (1001.0, pytest.approx(0.2002), 9)


def test_what_a_request_with_an_answer_holds_is_its_own():
    lengths = {"prompt_length_sum": 50_000.0, "prompt_length_count": 50.0, "generation_length_sum": 5000.0, "generation_length_count": 50.0}
    found = signals_of(*(snapshot(t, running=2.0, waiting=0.0, kv_usage=0.9, **lengths) for t in (0, 5, 10)))
    assert found.tokens_per_sequence == pytest.approx(4500.0)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        pytest.param((100, 105, 110), 40.0, id="two percent a second, and 80 are left"),
        pytest.param((100, 104, 109), None, id="less than ten seconds tell no rate"),
        pytest.param((100, 110), None, id="two points always make a line"),
    ],
)
def test_when_the_cache_will_be_full(times, seconds):
    found = signals_of(*(snapshot(float(t), running=1.0, kv_usage=0.02 * (t - 100)) for t in times))
    assert found.seconds_to_full == (None if seconds is None else pytest.approx(seconds))
