from __future__ import annotations

from typing import Any

import pytest

from kvwatch.exporter.web.chart_history import SPAN_SECONDS, Point
from kvwatch.exporter.web.charts import HEIGHT, BandSegment, Timeline, band_summary, charts, gap_after, path, state_band
from kvwatch.exporter.web.condition import Condition
from kvwatch.svg import nice_top

NOW = 10_000.0
near: Any = pytest.approx
"""Stands in a value's place when whole segments are compared."""
START = NOW - SPAN_SECONDS
UNIX = 1_800_000_000.0  # 08:00 UTC
HALF_AN_HOUR = Timeline(NOW, SPAN_SECONDS, UNIX)


def drawn(*samples: tuple[float, float | None], gap: float = 25.0, top: float = 1.0) -> str:
    return path([(START + at, value) for at, value in samples], HALF_AN_HOUR, gap=gap, top=top)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param([(0.0, 0.0)], "M0.0 90.0h0", id="one point is a dot"),
        pytest.param([(0.0, 0.0), (10.0, 1.0)], "M0.0 90.0h0L2.0 0.0", id="two points are a line"),
        pytest.param([(0.0, 0.5), (10.0, None), (20.0, 0.5)], "M0.0 45.0h0M4.0 45.0h0", id="an absent number breaks the line"),
        pytest.param([(0.0, 0.5), (26.0, 0.5)], "M0.0 45.0h0M5.2 45.0h0", id="polls that never came break the line"),
        pytest.param([(0.0, 0.5), (25.0, 0.5)], "M0.0 45.0h0L5.0 45.0", id="a late poll does not"),
        pytest.param([(0.0, 2.0), (10.0, -1.0)], "M0.0 0.0h0L2.0 90.0", id="what is off the axis stays on the plot"),
    ],
)
def test_path(samples, expected):
    assert drawn(*samples) == expected


@pytest.mark.parametrize(
    ("highest", "least", "top"),
    [
        (0.0, 4.0, 4.0),
        (4.1, 4.0, 5.0),
        (12.0, 4.0, 15.0),
        (402.0, 10.0, 500.0),
        (0.41, 0.2, 0.5),
        (1000.0, 10.0, 1000.0),
        (1001.0, 10.0, 1500.0),
    ],
)
def test_an_axis_ends_at_the_next_round_number(highest, least, top):
    assert nice_top(highest, least) == pytest.approx(top)


def test_three_missed_polls_are_a_gap():
    assert gap_after(5.0) == 23.0


@pytest.mark.parametrize(
    ("age", "span", "ticks"),
    [
        pytest.param(None, 120.0, ("07:58", "07:59", "08:00 UTC"), id="nothing yet"),
        pytest.param(60.0, 120.0, ("07:58", "07:59", "08:00 UTC"), id="a minute"),
        pytest.param(121.0, 300.0, ("07:55", "07:57", "08:00 UTC"), id="two minutes"),
        pytest.param(1800.0, 1800.0, ("07:30", "07:45", "08:00 UTC"), id="half an hour"),
        pytest.param(1805.0, 1800.0, ("07:30", "07:45", "08:00 UTC"), id="a little more"),
    ],
)
def test_the_time_axis_is_no_longer_than_the_history(age, span, ticks):
    timeline = Timeline.since(None if age is None else NOW - age, NOW, UNIX)
    assert (timeline.span, timeline.ticks) == (span, ticks)
    assert timeline.x(NOW) == 360.0
    assert timeline.x(NOW - span) == 0.0


def band(*states: tuple[float, Condition]) -> tuple[BandSegment, ...]:
    return state_band([(START + at, state) for at, state in states], HALF_AN_HOUR, interval=5.0)


def test_equal_states_in_a_row_are_one_stretch():
    assert band((1770.0, Condition.HEALTHY), (1780.0, Condition.HEALTHY), (1790.0, Condition.KV_BOUND)) == (
        BandSegment(Condition.HEALTHY, near(354.0), near(4.0)),
        BandSegment(Condition.KV_BOUND, near(358.0), near(2.0)),
    )


def test_time_nobody_watched_is_left_out_of_the_band():
    assert band((0.0, Condition.HEALTHY), (900.0, Condition.HEALTHY)) == (
        BandSegment(Condition.HEALTHY, near(0.0), near(1.0)),
        BandSegment(Condition.HEALTHY, near(180.0), near(1.0)),
    )


def test_a_band_without_points_is_empty():
    assert band() == ()
    assert band_summary((), HALF_AN_HOUR) == "State over the last 30 minutes: not watched yet"


def test_the_band_is_told_in_minutes():
    assert (
        band_summary((BandSegment(Condition.HEALTHY, 0.0, 240.0), BandSegment(Condition.KV_BOUND, 240.0, 120.0)), HALF_AN_HOUR)
        == "State over the last 30 minutes: KV-bound 10 min, Healthy 20 min"
    )


def point(at: float, **numbers: float | None) -> Point:
    usual: dict[str, Any] = {"at": at, "condition": Condition.HEALTHY, "kv_mean": 0.5, "kv_peak": 0.75, "running": 3.0, "waiting": 0.0}
    return Point(**(usual | {"preemption_ratio": 0.0, "tokens_per_second": 401.5, "first_token": 0.25, "queue_time": None} | numbers))


def test_the_plots_carry_axis_values_latest_numbers_and_words():
    points = [point(NOW - 10.0), point(NOW, waiting=12.0)]
    kv, requests, ratio, tokens, first, queued = charts(points, HALF_AN_HOUR, interval=5.0, storm_ratio=0.10)
    assert (kv.top, kv.middle, kv.bottom) == ("100 %", "50 %", "0")
    assert [(line.name, line.latest) for line in kv.lines] == [
        ("mean", "50\N{NARROW NO-BREAK SPACE}%"),
        ("peak", "75\N{NARROW NO-BREAK SPACE}%"),
    ]
    assert (requests.top, requests.middle) == ("15", "7.5")
    assert requests.summary == "Requests over the last 30 minutes: running 3 now, 3 to 3; waiting 12 now, 0 to 12"
    assert (tokens.top, tokens.lines[0].latest) == ("500", "402")
    assert (first.top, first.lines[0].latest) == ("300\N{NARROW NO-BREAK SPACE}ms", "250\N{NARROW NO-BREAK SPACE}ms")
    assert (queued.lines[0].path, queued.lines[0].latest) == ("", "\N{EN DASH}")
    assert ratio.limit == pytest.approx(HEIGHT / 2), "without preemptions the axis ends at twice the limit"
    assert ratio.limit_name == "page at 10\N{NARROW NO-BREAK SPACE}%"


def test_the_limit_line_sinks_as_the_storm_grows():
    _, _, ratio, *_ = charts([point(NOW, preemption_ratio=0.41)], HALF_AN_HOUR, interval=5.0, storm_ratio=0.10)
    assert ratio.top == "50\N{NARROW NO-BREAK SPACE}%"
    assert ratio.limit == pytest.approx(HEIGHT * 0.8)


def test_plots_without_points_have_axes_and_say_so():
    kv, *_ = charts([], HALF_AN_HOUR, interval=5.0, storm_ratio=0.10)
    assert [line.path for line in kv.lines] == ["", ""]
    assert kv.summary == "KV cache usage over the last 30 minutes: mean –; peak –"  # noqa: RUF001 - the dash is what the page shows


def test_the_latest_number_is_absent_when_the_last_poll_brought_none():
    kv, *_ = charts([point(NOW - 10.0), point(NOW, kv_mean=None)], HALF_AN_HOUR, interval=5.0, storm_ratio=0.10)
    assert kv.lines[0].latest == "–"  # noqa: RUF001 - the dash is what the page shows
