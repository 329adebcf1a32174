from __future__ import annotations

from typing import Any

import pytest
from builders import snapshot, steady, window

from kvwatch.classifier.windows import computed_prompt, gauge, increase, preemption_ratio, prefill_share, queue_of, rate, summarise
from kvwatch.model import GaugeStats

near: Any = pytest.approx


@pytest.mark.parametrize(
    ("preemptions", "finished", "running", "ratio"),
    [
        pytest.param(40, 60, 10, 0.40, id="40 of 100 leaving requests were preempted"),
        pytest.param(2, 0, 100, 0.02, id="long answers: the running ones count while fewer have ended"),
        pytest.param(12, 0, 9, 1.0, id="nothing finishes: the worst storm"),
        pytest.param(1, 1, 1, 0.5, id="a quiet server with one preemption in two requests"),
        pytest.param(0, 0, 5, 0.0, id="running, nothing ended"),
        pytest.param(0, 0, 0, None, id="nothing at all"),
        pytest.param(None, 5, 5, None, id="preemptions not reported"),
        pytest.param(5, None, 5, None, id="finished requests not reported"),
    ],
)
def test_preemption_ratio(preemptions, finished, running, ratio):
    assert preemption_ratio(preemptions, finished, steady(running)) == (ratio if ratio is None else pytest.approx(ratio))


def test_a_window_has_gauges_as_statistics_and_counters_as_increases():
    found = summarise(
        [
            snapshot(0, running=2.0, waiting=0.0, kv_usage=0.2, preemptions=5.0, finished=10.0, generation_tokens=100.0),
            snapshot(5, running=4.0, waiting=3.0, kv_usage=0.9, preemptions=6.0, finished=10.0, generation_tokens=150.0),
            snapshot(10, running=3.0, waiting=3.0, kv_usage=0.4, preemptions=9.0, finished=16.0, generation_tokens=400.0),
        ]
    )
    assert found.running == GaugeStats(mean=3.0, low=2.0, peak=4.0, last=3.0)
    assert found.kv_usage == GaugeStats(mean=near(0.5), low=0.2, peak=0.9, last=0.4)
    assert (found.seconds, found.samples) == (10, 3)
    assert (found.preemptions, found.finished, found.generation_tokens) == (4.0, 6.0, 300.0)
    assert found.queued_share == pytest.approx(2 / 3)
    assert found.preemption_ratio == pytest.approx(0.4)


def test_deferred_requests_are_not_in_the_queue_for_capacity():
    found = summarise([snapshot(0, waiting=5.0, waiting_deferred=5.0), snapshot(5, waiting=6.0, waiting_deferred=4.0)])
    assert found.queue == GaugeStats(mean=1.0, low=0.0, peak=2.0, last=2.0)
    assert found.deferred == GaugeStats(mean=4.5, low=4.0, peak=5.0, last=4.0)


def test_what_is_absent_stays_absent():
    found = summarise([snapshot(0, kv_usage=None, preemptions=None), snapshot(5, kv_usage=None, preemptions=None)])
    assert (found.kv_usage, found.preemptions, found.preemption_ratio, found.deferred) == (None, None, None, None)


def test_a_sample_that_is_missing_among_others_is_left_out_of_the_mean():
    found = summarise([snapshot(0, kv_usage=0.4), snapshot(5, kv_usage=None), snapshot(10, kv_usage=0.6)])
    assert found.kv_usage.mean == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("fields", "share", "computed"),
    [
        pytest.param({"prompt_tokens": 300.0, "generation_tokens": 100.0}, 0.75, 300.0, id="three quarters"),
        pytest.param(
            {"prompt_tokens": 900.0, "computed_prompt_tokens": 100.0, "generation_tokens": 100.0}, 0.5, 100.0, id="less the cached"
        ),
        pytest.param({"prompt_tokens": 0.0, "generation_tokens": 0.0}, None, 0.0, id="nothing was computed"),
        pytest.param({"prompt_tokens": None, "generation_tokens": 100.0}, None, None, id="prompts are not reported"),
        pytest.param({"prompt_tokens": 300.0, "generation_tokens": None}, None, 300.0, id="tokens are not reported"),
    ],
)
def test_share_of_prompts_among_the_tokens_computed(fields, share, computed):
    assert (prefill_share(window(30.0, **fields)), computed_prompt(window(30.0, **fields))) == (share, computed)


@pytest.mark.parametrize(
    ("first", "last", "more"), [(3.0, 5.0, 2.0), (3.0, 3.0, 0.0), (5.0, 3.0, None), (None, 3.0, None), (3.0, None, None)]
)
def test_a_counter_that_goes_back_has_no_increase(first, last, more):
    assert increase(first, last) == more


@pytest.mark.parametrize(("amount", "seconds", "per_second"), [(60.0, 30.0, 2.0), (60.0, 0.0, None), (None, 30.0, None)])
def test_a_rate_needs_time(amount, seconds, per_second):
    assert rate(amount, window(seconds)) == per_second


@pytest.mark.parametrize(
    ("waiting", "deferred", "length"), [(5.0, None, 5.0), (5.0, 2.0, 3.0), (5.0, 0.0, 5.0), (5.0, 7.0, 0.0), (None, 2.0, None)]
)
def test_those_that_wait_for_capacity(waiting, deferred, length):
    assert queue_of(snapshot(0.0, waiting=waiting, waiting_deferred=deferred)) == length


def test_a_gauge_is_described_by_what_is_known_of_it():
    assert gauge([None, 2.0, 5.0, None, 2.0]) == GaugeStats(mean=3.0, low=2.0, peak=5.0, last=2.0)
    assert gauge([None]) is None


def test_where_nobody_is_known_to_run_those_that_left_tell_the_share():
    assert preemption_ratio(1.0, 0.0, None) == 1.0
    assert preemption_ratio(0.0, 0.0, None) is None
