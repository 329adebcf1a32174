"""Where the lines lie that the rules share, on both sides of each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import queue, signals, steady

from kvwatch.classifier.rules import admission, deferred, frontend, healthy, preempting, pressure, step_budget
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.config.policy import Policy
from kvwatch.model import Cause

POLICY = Policy()


@pytest.mark.parametrize(("share", "stands"), [(None, False), (0.39, False), (0.4, True)])
def test_a_batch_stands_at_its_ceiling_in_two_samples_of_five(share, stands):
    assert pressure.stands_at_ceiling(signals(at_ceiling_share=share)) is stands


@pytest.mark.parametrize(("proven", "share", "stays"), [(True, 0.51, True), (True, 0.5, False), (True, None, False), (False, 1.0, False)])
def test_a_batch_stays_at_a_ceiling_that_once_bound_in_most_samples(proven, share, stays):
    assert pressure.stays_at_proven_ceiling(signals(ceiling_proven=proven, at_ceiling_share=share)) is stays


@pytest.mark.parametrize(("usage", "decoding", "pinned"), [(0.5, 7.2, True), (0.5, 7.1, False), (0.9, 8.0, False), (0.5, None, False)])
def test_counters_show_a_batch_at_its_ceiling_unless_the_cache_is_hot(usage, decoding, pinned):
    """Eight are the most; nine tenths of them are 7.2."""
    found = signals(every={"kv_usage": steady(usage)}, running_ceiling=8.0, sequences_decoding=decoding, at_ceiling_share=0.2)
    assert pressure.is_pinned(found) is pinned


@pytest.mark.parametrize(("prefilling", "share"), [(0.4, 0.4), (1.7, 1.0), (2.5, 1.0), (2.6, None), (None, None)])
def test_share_of_the_steps_in_which_a_prompt_is_computed(prefilling, share):
    assert pressure.share_of_steps_with_prefill(signals(sequences_prefilling=prefilling)) == share
    assert pressure.share_of_steps_with_prefill(signals(fast={"prompt_tokens": 0.0}, sequences_prefilling=prefilling)) is None


@pytest.mark.parametrize(("usage", "fits"), [(0.25, True), (0.26, False)])
def test_the_next_one_fits_as_long_as_half_as_much_again_as_a_mean_one_is_free(usage, fits):
    """A running sequence holds half of the pool: three quarters may be needed."""
    assert pressure.next_prompt_does_not_fit(signals(every={"kv_usage": steady(usage)}, sequence_share=0.5)) is not fits


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        pytest.param({}, 0.15, id="half as much again as one holds"),
        pytest.param({"next_prompt_tokens": 600.0, "output_tokens": 800.0}, 0.09, id="a prompt of 600, where one holds 1000 of them"),
        pytest.param({"next_prompt_tokens": 600.0, "output_tokens": 800.0, "preempted_lately": 1.0}, 0.15, id="a victim's output too"),
        pytest.param({"next_prompt_tokens": 600.0}, 0.15, id="no output known"),
        pytest.param({"next_prompt_tokens": 4000.0, "capacity_tokens": 20_000}, 0.3, id="prompts are longer than what is computed so far"),
        pytest.param({"next_prompt_tokens": 4000.0, "capacity_tokens": 20_000, "prefix_hit_ratio": 0.9}, 0.15, id="but nine tenths cached"),
        pytest.param({"sequence_share": None}, None, id="nothing known"),
        pytest.param({"sequence_share": None, "next_prompt_tokens": 4000.0, "capacity_tokens": 20_000}, 0.3, id="the prompt alone"),
    ],
)
def test_what_the_next_admission_needs(fields, needed):
    found = pressure.share_needed(signals(**({"sequence_share": 0.1} | fields)))
    assert found == (None if needed is None else pytest.approx(needed))


@pytest.mark.parametrize(
    ("usage", "share", "roomy"), [(0.49, 0.1, True), (0.5, 0.1, False), (0.45, 0.45, False), (0.45, 0.44, True), (0.3, None, True)]
)
def test_plenty_of_room_is_a_cache_below_half_that_one_more_would_not_fill(usage, share, roomy):
    assert pressure.has_plenty_of_room(signals(every={"kv_usage": steady(usage)}, sequence_share=share)) is roomy


@pytest.mark.parametrize(
    ("cool", "step", "over"), [(None, 0.0, False), (3.9, 3.0, False), (4.0, 3.0, True), (8.9, 9.0, False), (9.0, 9.0, True)]
)
def test_trouble_is_over_after_four_cool_seconds_or_the_longest_step(cool, step, over):
    assert pressure.is_over(signals(cool_seconds=cool, longest_step=step)) is over


def test_a_hot_cache_under_a_batch_that_swings_says_between_what():
    swings = {"running": replace(steady(6.0), low=4.0, peak=9.0), "kv_usage": steady(0.95)}
    found = admission.judge(signals(every=queue(5.0) | swings), POLICY)
    assert found is not None
    assert found.evidence == ("5 requests waiting", "KV cache at 95 % at its fullest, running between 4 and 9")


@pytest.mark.parametrize(("tokens", "share", "speaks"), [(128.0, 0.5, True), (127.9, 0.5, False), (128.0, 0.49, False), (None, 0.5, True)])
def test_a_step_that_is_mostly_prompt(tokens, share, speaks):
    found = step_budget.judge(signals(every=queue(5.0), tokens_per_step=tokens, prefill_token_share=share), POLICY)
    assert (found is not None) is speaks


@pytest.mark.parametrize(
    ("tokens", "budget", "prefilling", "full"),
    [
        pytest.param(225.0, 250, 0.0, True, id="nine tenths of the budget"),
        pytest.param(224.0, 250, 1.0, False, id="less, though a prompt is always under way"),
        pytest.param(224.0, None, 0.5, True, id="a prompt in every second step"),
        pytest.param(224.0, None, 0.4, False, id="in fewer"),
        pytest.param(None, 250, 0.5, True, id="nothing is known of the steps"),
        pytest.param(224.0, None, None, False, id="nor of who gets tokens"),
    ],
)
def test_where_the_slots_are_taken_steps_must_be_full(tokens, budget, prefilling, full):
    steps = {"tokens_per_step": tokens, "step_token_budget": budget, "sequences_prefilling": prefilling}
    found = step_budget.judge(signals(every=queue(5.0), prefill_token_share=0.9, at_ceiling_share=1.0, **steps), POLICY)
    assert (found is not None) is full


@pytest.mark.parametrize(("prefilling", "speaks"), [(0.84, True), (0.85, False)])
def test_where_a_prompt_is_nearly_always_under_way_the_cache_keeps_nobody_out(prefilling, speaks):
    found = signals(every=queue(5.0) | {"kv_usage": steady(0.95)}, sequence_share=0.1, sequences_prefilling=prefilling)
    assert (admission.judge(found, POLICY) is not None) is speaks


@pytest.mark.parametrize(("share", "seconds", "speaks"), [(0.7, 0.0, True), (0.69, 3.9, False), (0.1, 4.0, True), (None, 9.0, False)])
def test_a_queue_is_sustained_in_seven_samples_of_ten_or_unbroken_for_four_seconds(share, seconds, speaks):
    assert is_sustained(signals(every={"queued_share": share}, queued_seconds=seconds)) is speaks


@pytest.mark.parametrize(
    ("mean", "low", "waiting", "speaks"),
    [
        pytest.param(1.0, 1.0, 2.0, True, id="one of two"),
        pytest.param(0.9, 0.5, 1.0, False, id="less than one"),
        pytest.param(2.0, 0.0, 2.0, False, id="none at one moment"),
        pytest.param(2.0, 0.5, 2.0, True, id="never none"),
        pytest.param(2.0, 2.0, 4.1, False, id="the smaller part"),
    ],
)
def test_requests_that_do_not_wait_for_capacity(mean, low, waiting, speaks):
    every = {"deferred": replace(steady(mean), low=low), "waiting": steady(waiting)}
    assert (deferred.judge(signals(every=every), POLICY) is not None) is speaks


@pytest.mark.parametrize(
    ("seconds", "mean", "cause"), [(60.0, 0.91, Cause.KV_HIGH), (59.0, 0.91, Cause.OK), (60.0, 0.9, Cause.OK), (120.0, None, Cause.OK)]
)
def test_a_cache_above_the_watermark_for_a_minute_is_named(seconds, mean, cause):
    found = signals(every={"kv_usage": None if mean is None else steady(mean)})
    said = healthy.judge(replace(found, slow=replace(found.slow, seconds=seconds)), POLICY)
    assert said is not None
    assert said.cause is cause


@pytest.mark.parametrize(("cool", "sustained"), [(10.0, True), (9.9, False), (None, False)])
def test_health_that_has_lasted_needs_no_second_scrape(cool, sustained):
    said = healthy.judge(signals(cool_seconds=cool), POLICY)
    assert said is not None
    assert said.sustained is sustained


@pytest.mark.parametrize(
    ("waits", "count", "ceiling", "share", "speaks"),
    [
        pytest.param(1.0, 2.0, 0.0, 0.02, True, id="one in fifty, and one waits behind them"),
        pytest.param(1.0, 2.0, 0.0, 0.019, False, id="fewer"),
        pytest.param(0.9, 2.0, 0.0, 0.049, False, id="hardly anybody waits"),
        pytest.param(0.9, 2.0, 0.0, 0.05, True, id="one in twenty, whoever waits"),
        pytest.param(1.0, 2.0, 0.4, 0.049, False, id="the slots are taken anyway"),
        pytest.param(1.0, 1.0, 0.0, 0.049, False, id="one alone"),
        pytest.param(1.0, 1.0, 0.0, 0.05, True, id="one of twenty"),
    ],
)
def test_the_share_of_preempted_ones_worth_naming(waits, count, ceiling, share, speaks):
    every = queue(waits) | {"kv_usage": steady(0.95), "running": steady(8.0)}
    shares = {"preempted_share": share, "at_ceiling_share": ceiling}
    found = signals(every=every, preempted=count, preempted_lately=1.0, running_ceiling=8.0, **shares)
    assert (preempting.judge(found, POLICY) is not None) is speaks


@pytest.mark.parametrize(("again", "usage", "speaks"), [(0.5, 0.9, True), (0.49, 0.9, False), (0.5, 0.89, False), (0.5, None, False)])
def test_victims_no_counter_shows_are_half_a_sequence_in_a_full_cache(again, usage, speaks):
    found = signals(every={"kv_usage": usage if usage is None else steady(usage)}, sequences_recomputing=again)
    assert (preempting.judge(found, POLICY) is not None) is speaks


@pytest.mark.parametrize(("busy", "speaks"), [(0.79, True), (0.8, False), (None, False)])
def test_a_gpu_that_idles_while_requests_wait(busy, speaks):
    assert (frontend.judge(signals(every=queue(5.0), gpu_utilization=busy), POLICY) is not None) is speaks


@pytest.mark.parametrize(("lately", "sustained"), [(2.0, False), (3.0, True)])
def test_three_preemptions_in_the_fast_window_need_no_second_scrape(lately, sustained):
    seen = {"preemptions": lately, "finished": 10.0, "kv_usage": steady(0.95), "preemption_ratio": lately / (lately + 10)}
    found = preempting.judge(signals(every=queue(5.0) | seen), POLICY)
    assert found is not None
    assert found.sustained is sustained


@pytest.mark.parametrize(
    ("count", "lately", "waits", "usage", "speaks"),
    [
        pytest.param(2.0, 1.0, 5.0, 0.95, True, id="two, one of them just now"),
        pytest.param(1.0, 1.0, 5.0, 0.95, False, id="one alone is no cause of a queue"),
        pytest.param(2.0, 0.0, 5.0, 0.95, True, id="two, and requests wait before a full cache"),
        pytest.param(2.0, 0.0, 5.0, 0.85, False, id="two, and the cache is not full"),
        pytest.param(2.0, 0.0, 0.5, 0.95, False, id="two, and hardly anybody waits"),
        pytest.param(1.0, 0.0, 5.0, 0.95, False, id="one, a while ago"),
    ],
)
def test_three_in_a_hundred_were_preempted(count, lately, waits, usage, speaks):
    found = signals(every=queue(waits) | {"kv_usage": steady(usage)}, preempted=count, preempted_lately=lately, preempted_share=0.03)
    assert (preempting.judge(found, POLICY) is not None) is speaks


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"held_beyond": 0.27, "next_prompt_tokens": 2000.0, "output_tokens": 400.0},
            "27 % of the KV cache is held that requests of 2 400",
        ),
        ({"held_beyond": None, "next_prompt_tokens": 2000.0, "output_tokens": 400.0}, None),
        ({"held_beyond": 0.27, "next_prompt_tokens": None, "output_tokens": 400.0}, None),
        ({"held_beyond": 0.27, "next_prompt_tokens": 2000.0, "output_tokens": None}, None),
    ],
)
def test_what_nobody_is_known_to_need_is_said(fields, said):
    found = pressure.held_by_nobody(signals(**fields))
    assert found == () if said is None else found[0].startswith(said)


@pytest.mark.parametrize(
    ("fields", "alone"),
    [
        pytest.param({}, True, id="a fifth was free"),
        pytest.param({"usage_at_ceiling": 0.86}, False, id="less than the next one needs"),
        pytest.param({"next_prompt_tokens": 11_000.0}, False, id="eight prompts of 11 % of the pool: it is theirs already"),
        pytest.param({"next_prompt_tokens": 11_000.0, "prefix_hit_ratio": 0.5}, True, id="half of each is cached"),
        pytest.param({"at_ceiling_share": 0.3}, False, id="it seldom stands there"),
        pytest.param({"usage_at_ceiling": None}, False, id="what was free is not known"),
        pytest.param({"sequence_share": None, "capacity_tokens": None}, False, id="what is needed is not known"),
    ],
)
def test_slots_alone_bind_where_there_was_room_for_one_more(fields, alone):
    """A running sequence holds a tenth of 100 000 tokens: 15 % may be needed."""
    known = {"capacity_tokens": 100_000, "next_prompt_tokens": 1000.0, "sequence_share": 0.1, "running_ceiling": 8.0}
    found = signals(every={"kv_usage": steady(0.95)}, **(known | {"at_ceiling_share": 0.9, "usage_at_ceiling": 0.8} | fields))
    assert pressure.slots_alone_bind(found) is alone


@pytest.mark.parametrize(
    ("held", "ceiling", "full"),
    [
        pytest.param(9.0, 9.0, 0.9, id="nine held a tenth each between two samples"),
        pytest.param(5.0, 9.0, 0.6, id="a sample found more"),
        pytest.param(12.0, 9.0, 0.9, id="no more than ever ran: the time in prefill is more than that of one at a time"),
        pytest.param(12.0, None, 1.0, id="never more than all"),
        pytest.param(None, 9.0, 0.6, id="not known"),
    ],
)
def test_how_full_the_cache_really_got(held, ceiling, full):
    found = signals(every={"kv_usage": steady(0.6)}, sequences_held=held, running_ceiling=ceiling, sequence_share=0.1)
    assert pressure.fullness(found) == pytest.approx(full)
