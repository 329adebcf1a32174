from __future__ import annotations

from typing import Any

import pytest
from builders import snapshot, steady

from kvwatch.classifier.windows import preemption_ratio, summarise
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
