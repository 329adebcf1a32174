from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace
from typing import cast

import pytest
from exporter_views import SIGNALS, STORMING, UNPOLLED, VIEW, failed

from kvwatch.exporter.web.chart_history import POINTS, SPAN_SECONDS, ChartHistory, Track
from kvwatch.exporter.web.condition import Condition
from kvwatch.model import Cause, EngineId, GaugeStats, Quantiles

ENGINE = cast("EngineId", STORMING.verdict.engine)


def usage(mean, peak):
    return replace(SIGNALS, recent=replace(SIGNALS.recent, kv_usage=GaugeStats(mean=mean, low=0.0, peak=peak, last=mean)))


def view_at(at, *, engine=ENGINE, signals=SIGNALS, target="vllm-0"):
    verdict = replace(STORMING.verdict, engine=engine)
    return replace(VIEW, name=target, at=at, assessments=(replace(STORMING, verdict=verdict, signals=signals),))


def test_a_poll_becomes_a_point():
    history = ChartHistory()
    history.record(view_at(100.0))
    assert history.conditions("vllm-0", ENGINE) == ((100.0, Condition.KV_BOUND),)
    (point,) = history.points("vllm-0", ENGINE)
    assert (point.at, point.condition) == (100.0, Condition.KV_BOUND)
    assert point.kv_mean == pytest.approx(0.93)
    assert point.kv_peak == pytest.approx(0.9975)
    assert (point.running, point.waiting, point.tokens_per_second) == (12.0, 7.0, 401.5)
    assert point.preemption_ratio == pytest.approx(0.4)


def test_polls_within_a_second_become_one_point_of_their_means_and_peaks():
    track = Track()
    track.add(100.0, Condition.HEALTHY, replace(usage(0.5, 0.75), running=2.0))
    track.add(100.4, Condition.HEALTHY, replace(usage(0.25, 0.5), running=4.0))
    track.add(100.8, Condition.KV_BOUND, replace(usage(0.0, 1.0), running=9.0))
    (point,) = track.points()
    assert (point.at, point.kv_mean, point.kv_peak, point.running, point.condition) == (100.0, 0.25, 1.0, 5.0, Condition.KV_BOUND)


def test_a_second_later_a_new_point_begins():
    track = Track()
    track.add(100.0, Condition.HEALTHY, SIGNALS)
    track.add(101.0, Condition.HEALTHY, SIGNALS)
    assert [point.at for point in track.points()] == [100.0, 101.0]


def filled(polls, *, every=1.0):
    track = Track()
    for poll in range(polls):
        track.add(poll * every, Condition.HEALTHY, replace(usage(poll % 2, poll % 2), running=float(poll)))
    return track


def test_a_full_history_merges_neighbours_and_doubles_its_grain():
    points = list(filled(POINTS + 1).points())
    assert [point.at for point in points[:3]] == [0.0, 2.0, 4.0]
    assert (points[0].kv_mean, points[0].kv_peak, points[0].running) == (0.5, 1.0, 0.5)
    assert [point.at for point in points[-2:]] == [POINTS - 2, POINTS], "the open point stands alone"
    assert len(points) == POINTS // 2 + 1


def test_points_are_not_merged_across_time_nobody_watched():
    track = Track()
    for poll in range(POINTS + 1):
        track.add(poll * 2.0 + (500.0 if poll > 100 else 0.0), Condition.HEALTHY, SIGNALS)
    ats = [point.at for point in track.points()]
    assert 200.0 in ats
    assert 702.0 in ats


def test_a_point_without_numbers_merges_to_the_numbers_of_its_neighbour():
    track = Track()
    for poll in range(POINTS + 1):
        track.add(float(poll), Condition.HEALTHY, None if poll % 2 else replace(SIGNALS, running=7.0))
    assert {point.running for point in track.points()} == {7.0}


@pytest.mark.parametrize(("every", "grain"), [(0.5, 8.0), (1.0, 8.0), (5.0, 10.0), (15.0, 15.0)])
def test_half_an_hour_fits_and_stays_bounded_whatever_the_interval(every, grain):
    points = list(filled(int(4000 / every), every=every).points())
    assert len(points) <= POINTS == 226
    assert points[-1].at - points[0].at >= SPAN_SECONDS - 2 * grain
    assert points[0].at >= points[-1].at - SPAN_SECONDS


def test_a_failed_poll_is_a_point_without_numbers():
    history = ChartHistory()
    history.record(failed(view_at(100.0)))
    (point,) = history.points("vllm-0", ENGINE)
    assert point.condition is Condition.DOWN
    assert (point.kv_mean, point.kv_peak, point.running, point.waiting, point.preemption_ratio, point.tokens_per_second) == (None,) * 6


def test_polls_that_never_came_are_not_made_up():
    track = Track()
    for at in (100.0, 110.0, 500.0, 510.0):
        track.add(at, Condition.HEALTHY, SIGNALS)
    assert [point.at for point in track.points()] == [100.0, 110.0, 500.0, 510.0]


def test_a_view_published_twice_counts_once():
    track = Track()
    track.add(100.0, Condition.HEALTHY, replace(SIGNALS, running=2.0))
    track.add(100.0, Condition.HEALTHY, replace(SIGNALS, running=8.0))
    assert [point.running for point in track.points()] == [2.0]


def test_the_oldest_point_of_all_is_known():
    history = ChartHistory()
    assert history.oldest() is None
    history.record(view_at(100.0))
    history.record(view_at(50.0, target="vllm-1"))
    assert history.oldest() == 50.0


def test_a_target_never_polled_leaves_nothing():
    history = ChartHistory()
    history.record(UNPOLLED)
    assert history.points("vllm-1", ENGINE) == ()


def test_an_engine_that_comes_back_finds_its_past_and_the_gap_in_it():
    history = ChartHistory()
    other = EngineId("demo-8b", "1")
    history.record(view_at(100.0))
    history.record(view_at(110.0, engine=other))
    history.record(view_at(400.0))
    assert [point.at for point in history.points("vllm-0", ENGINE)] == [100.0, 400.0]


def test_an_engine_gone_for_longer_than_the_span_is_forgotten():
    history = ChartHistory()
    history.record(view_at(100.0))
    history.record(view_at(100.0 + SPAN_SECONDS + 1.0, engine=EngineId("demo-8b", "1")))
    assert history.points("vllm-0", ENGINE) == ()


def test_a_model_name_that_changes_at_every_poll_does_not_grow_the_history():
    history = ChartHistory()
    for poll in range(500):
        history.record(view_at(float(poll), engine=EngineId(f"model-{poll}", "0")))
    kept = [poll for poll in range(500) if history.points("vllm-0", EngineId(f"model-{poll}", "0"))]
    assert kept == list(range(491, 500))


def test_a_forgotten_target_leaves_the_others_alone():
    history = ChartHistory()
    history.record(view_at(100.0, target="vllm-0"))
    history.record(view_at(100.0, target="vllm-1"))
    history.forget("vllm-0")
    history.forget("never-known")
    assert history.points("vllm-0", ENGINE) == ()
    assert len(history.points("vllm-1", ENGINE)) == 1


def test_a_full_engine_costs_less_than_sixteen_kibibytes():
    engines = 50
    history = ChartHistory()
    tracemalloc.start()
    try:
        for second in range(0, 2000, 2):
            for number in range(engines):
                history.record(view_at(float(second), target=f"vllm-{number}"))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{used / engines:.0f} bytes per engine", file=sys.stderr)  # noqa: T201 - the figure the docstring quotes
    assert used / engines < 16 * 1024


@pytest.mark.parametrize(
    ("p95", "mean", "shown"),
    [
        pytest.param(0.285, 0.002, 0.04, id="nobody waits, and all lie in the first bucket"),
        pytest.param(4.0, 1.5, 4.0, id="a queue"),
        pytest.param(0.285, None, 0.285, id="no mean is known"),
        pytest.param(0.285, 0.0, 0.0, id="not one waited"),
    ],
)
def test_the_time_in_the_queue_is_no_more_than_its_mean_allows(p95, mean, shown):
    """At most one time in twenty can be longer than twenty means."""
    track = Track()
    track.add(100.0, Condition.HEALTHY, replace(SIGNALS, queue_time=Quantiles(p95 / 2, p95, p95, mean, 20.0)))
    [point] = track.points()
    assert point.queue_time == pytest.approx(shown)


@pytest.mark.parametrize(
    ("cause", "condition"),
    [(Cause.STALLED, Condition.DOWN), (Cause.UNREACHABLE, Condition.DOWN), (Cause.COMPUTE, Condition.COMPUTE_BOUND)],
)
def test_who_serves_nobody_is_in_the_band_as_that(cause, condition):
    history = ChartHistory()
    verdict = replace(STORMING.verdict, state=cause.state, cause=cause)
    history.record(replace(VIEW, assessments=(replace(STORMING, verdict=verdict),)))
    assert [one for _, one in history.conditions(VIEW.name, ENGINE)] == [condition]
