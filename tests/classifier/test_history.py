from __future__ import annotations

import pytest
from builders import histogram, snapshot

from kvwatch.classifier.history import History
from kvwatch.classifier.windows import summarise
from kvwatch.model import COUNTERS


def fill(*snapshots):
    history = History(120.0, fine=35.0, max_gap=20.0)
    for one in snapshots:
        history.append(one)
    return history


def test_of_the_time_before_the_fine_window_one_snapshot_in_fifteen_seconds_is_kept():
    history = fill(*(snapshot(t) for t in range(0, 300, 5)))
    assert [s.at for s in history.spread()] == [*range(165, 286, 15), 295]
    assert [s.at for s in history.within(30, slack=2.5)] == [265, 270, 275, 280, 285, 290, 295]


def test_buckets_are_kept_where_the_slow_window_may_begin_and_in_the_newest():
    """Quantiles are taken from there to the newest. Of every other snapshot only the totals that tell the batch are kept."""

    def moving(t):
        return snapshot(t, time_to_first_token=histogram(t, 2 * t, 3 * t, total=4 * t), queue_time=histogram(t, t, t))

    history = fill(*(moving(t) for t in range(0, 300, 5)))
    whole = [s.at for s in {s.at: s for s in (*history.spread(), *history.within(300, slack=0))}.values() if s.queue_time is not None]
    assert sorted(whole) == [*range(165, 286, 15), 295]
    assert all(s.time_to_first_token.bounds for s in history.spread())
    fast = history.within(30, slack=2.5)
    assert [(s.time_to_first_token.count, s.time_to_first_token.sum) for s in fast] == [(3 * t, 4 * t) for t in range(265, 296, 5)]


@pytest.mark.parametrize("every", [1, 2, 5, 7, 10, 15, 30, 60])
def test_the_slow_window_always_begins_at_a_snapshot_with_buckets(every):
    history = History(120.0, fine=30.0 + every, max_gap=240.0)
    for t in range(0, 600, every):
        history.append(snapshot(t, e2e_latency=histogram(t, t, t)))
        assert all(one.e2e_latency is not None for one in (history.spread()[0], history.last))


def test_polls_slower_than_the_spacing_are_all_kept():
    history = fill(*(snapshot(t) for t in range(0, 300, 15)))
    assert [s.at for s in history.spread()] == [*range(165, 286, 15)]


def test_polls_every_second_cost_no_more_memory_than_the_fine_window():
    history = fill(*(snapshot(float(t)) for t in range(600)))
    assert len(history.spread()) == 10
    assert len(history.within(60, slack=0.5)) == 36


def test_within_takes_the_last_seconds_with_some_slack():
    history = fill(*(snapshot(t) for t in (0, 5, 10.4, 15, 20.2)))
    assert [s.at for s in history.within(10, slack=2.5)] == [10.4, 15, 20.2]


def test_within_never_gives_fewer_than_two():
    history = fill(snapshot(0), snapshot(15), snapshot(30))
    assert [s.at for s in history.within(5, slack=1)] == [15, 30]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({"preemptions": 50.0}, {"preemptions": 3.0}, id="a counter went back"),
        pytest.param(
            {"generation_tokens": 9000.0, "preemptions": 1.0}, {"generation_tokens": 10.0, "preemptions": 3.0}, id="one of several"
        ),
        pytest.param({"preemptions": 1.0, "created": 1000.0}, {"preemptions": 3.0, "created": 2000.0}, id="_created moved"),
    ],
)
def test_after_a_restart_counters_count_from_zero_and_the_time_before_is_forgotten(before, after):
    history = fill(snapshot(0, **before), snapshot(5, **before), snapshot(10, **after))
    assert summarise(history.spread()).preemptions == 3.0
    assert (len(history.spread()), list(history.restarts)) == (2, [10])


def test_a_known_restart_of_the_process_counts_even_if_no_counter_went_back():
    history = History(120, fine=35, max_gap=20)
    history.append(snapshot(0, preemptions=1.0))
    history.append(snapshot(5, preemptions=8.0), restarted=True)
    assert summarise(history.spread()).preemptions == 8.0


def test_histograms_start_from_zero_after_a_restart():
    history = fill(
        snapshot(0, preemptions=5.0, time_to_first_token=histogram(90, 90, 90)),
        snapshot(5, preemptions=0.0, time_to_first_token=histogram(1, 2, 4)),
    )
    first = history.spread()[0].time_to_first_token
    assert (list(first.counts), first.sum) == ([0.0, 0.0, 0.0], 0.0)


def test_created_that_trembles_is_no_restart():
    assert not fill(snapshot(0, created=1000.0), snapshot(5, created=1000.4)).restarts


@pytest.mark.parametrize(("created", "restarts"), [(1001.0, ()), (1001.1, (5,)), (999.0, ())])
def test_created_that_moved_on_by_more_than_a_second_is_one(created, restarts):
    assert fill(snapshot(0, created=1000.0), snapshot(5, created=created)).restarts == restarts


def test_the_last_four_restarts_are_remembered():
    assert fill(*(snapshot(5.0 * n, preemptions=9.0 - n) for n in range(7))).restarts == (15, 20, 25, 30)


def test_a_sum_that_goes_back_is_no_restart():
    assert not fill(snapshot(0, prompt_length_sum=500.0), snapshot(5, prompt_length_sum=-20.0)).restarts


def test_a_gap_ends_the_story_and_is_not_interpolated_over():
    history = fill(snapshot(0, preemptions=10.0), snapshot(5, preemptions=11.0), snapshot(26, preemptions=90.0))
    assert [s.at for s in history.spread()] == [26]


def test_a_missed_poll_or_two_is_no_gap():
    assert len(fill(snapshot(0), snapshot(5), snapshot(20)).within(30, slack=0)) == 3


@pytest.mark.parametrize(
    ("last", "without_progress", "without_life"),
    [
        pytest.param({"generation_tokens": 7.0}, 0, 0, id="a token came"),
        pytest.param({"kv_usage": 0.3}, 20, 0, id="only a gauge moved: the engine steps, no token comes"),
        pytest.param({"kv_usage": 0.5}, 0, 0, id="more is held than ever since the last token: a prompt gets further"),
        pytest.param({}, 20, 20, id="nothing moved"),
        pytest.param({"running": 0.0, "waiting": 0.0}, None, None, id="no work, no question"),
    ],
)
def test_progress_and_life_are_timed_while_there_is_work(last, without_progress, without_life):
    busy = {"running": 3.0, "kv_usage": 0.4, "generation_tokens": 5.0}
    history = fill(snapshot(0, **busy), snapshot(10, **busy), snapshot(20, **(busy | last)))
    assert (history.quiet.seconds_without_progress(), history.quiet.seconds_without_life()) == (without_progress, without_life)


def test_gauges_alone_prove_no_stall():
    """A few long answers keep every gauge still; without a counter nobody can tell that from a frozen engine."""
    still = {"running": 3.0, "kv_usage": 0.4} | dict.fromkeys(("generation_tokens", "prompt_tokens", "finished", "steps"))
    history = fill(snapshot(0, **still), snapshot(10, **still), snapshot(20, **still))
    assert (history.quiet.seconds_without_progress(), history.quiet.seconds_without_life()) == (0, 0)


def test_the_silence_of_an_idle_engine_does_not_count_when_work_comes():
    history = fill(snapshot(0), snapshot(10), snapshot(20, running=1.0), snapshot(25, running=1.0))
    assert history.quiet.seconds_without_progress() == 5


def test_an_engine_whose_token_counters_are_absent_is_not_called_silent():
    blind = {"running": 1.0, "generation_tokens": None, "prompt_tokens": None, "finished": None}
    assert fill(snapshot(0, **blind), snapshot(15, **blind)).quiet.seconds_without_progress() == 0


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param({"generation_tokens": 90.0, "running": 4.0}, 0.0, id="others counted already: nothing to count before"),
        pytest.param(dict.fromkeys(COUNTERS), 0.0, id="an idle engine that had counted nothing"),
        pytest.param(dict.fromkeys(COUNTERS) | {"running": 4.0}, None, id="a busy engine without any counter: the page was incomplete"),
    ],
)
def test_a_counter_that_appears_was_zero_before(before, expected):
    """Ray shows no preemption counter before the first preemption."""
    history = History(120.0, 40.0, 20.0)
    history.append(snapshot(0, **{"preemptions": None} | before))
    history.append(snapshot(5, preemptions=3.0, generation_tokens=100.0))
    assert history.spread()[0].preemptions == expected


def test_a_counter_that_was_there_before_is_not_born_again():
    history = History(120.0, 40.0, 20.0)
    for at, count in ((0, 5000.0), (5, None), (10, 5001.0)):
        history.append(snapshot(at, preemptions=count, generation_tokens=100.0 + at))
    assert [kept.preemptions for kept in history.within(30.0, 0.0)] == [5000.0, None, 5001.0]


def test_a_counter_that_comes_back_lower_is_a_restart():
    history = History(120.0, 40.0, 20.0)
    for at, count in ((0, 5000.0), (5, None), (10, 3.0)):
        history.append(snapshot(at, preemptions=count, generation_tokens=None))
    assert list(history.restarts) == [10]


def test_the_highest_running_count_is_remembered_until_a_restart():
    history = fill(snapshot(0, running=9.0, finished=5.0), snapshot(5, running=3.0, finished=6.0))
    assert history.highest_running == 9
    history.append(snapshot(10, running=2.0, finished=0.0))
    assert history.highest_running == 2


def test_a_restart_that_took_longer_than_a_gap_is_still_a_restart():
    history = fill(snapshot(0, running=9.0, finished=50.0), snapshot(60, running=2.0, finished=3.0))
    assert (history.highest_running, list(history.restarts), len(history.spread())) == (2, [60], 1)


def test_nobody_ever_ran_in_an_engine_that_is_idle():
    assert fill(snapshot(0), snapshot(5, running=None), snapshot(10)).highest_running == 0


@pytest.mark.parametrize(("restarted", "another", "held"), [(False, False, 0.3), (True, False, None), (False, True, None)])
def test_what_nobody_ran_for_goes_with_its_process(restarted, another, held):
    history = fill(snapshot(0, kv_usage=0.3), snapshot(5, kv_usage=0.3))
    history.append(snapshot(10, running=1.0, kv_usage=0.4), restarted=restarted, another=another)
    assert history.traffic.held_at_rest == held


@pytest.mark.parametrize(
    ("steps", "tokens", "same"),
    [
        # 5 s between the polls and 10 s that a page may be late: 15 x 5 000 steps, 15 x 500 000 tokens.
        pytest.param(1000 + 75_000.0, 0.0, True, id="as many steps as an engine can do"),
        pytest.param(1000 + 75_001.0, 0.0, False, id="more steps than any engine does"),
        pytest.param(None, 7_500_000.0, True, id="as many tokens"),
        pytest.param(None, 7_500_001.0, False, id="more tokens than any engine gives"),
    ],
)
def test_counters_that_moved_by_more_than_an_engine_can_do_are_another_process(steps, tokens, same):
    history = fill(*(snapshot(t, steps=None if steps is None else 1000.0, generation_tokens=0.0, preemptions=0.0) for t in (0, 5)))
    before = history.append(snapshot(10, steps=steps, generation_tokens=tokens, preemptions=4000.0))
    assert (before is not None) is same
    assert [s.at for s in history.within(30, slack=2.5)] == ([0, 5, 10] if same else [10])
    assert history.restarts == ()


@pytest.mark.parametrize(("steps", "restarts", "counted"), [(75_000.0, (10,), 40.0), (75_001.0, (), 0.0)])
def test_counters_that_went_back_count_from_zero_only_where_they_can_have_begun_there(steps, restarts, counted):
    history = fill(*(snapshot(t, steps=9e6, preemptions=500.0) for t in (0, 5)))
    history.append(snapshot(10, steps=steps, preemptions=40.0))
    assert history.restarts == restarts
    assert summarise(history.within(30, slack=2.5)).preemptions == counted


def test_a_process_that_is_known_to_have_started_since_counts_from_zero_whatever_it_did():
    history = fill(*(snapshot(t, steps=9e6) for t in (0, 5)))
    history.append(snapshot(10, steps=1e6), restarted=True)
    assert history.restarts == (10,)
