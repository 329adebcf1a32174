"""Jobs on an interval, whatever the jobs and the clocks do."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from kvwatch.clock import SystemClock
from kvwatch.daemon.schedule import Every, Schedule

NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
PATIENCE = 5.0
"""Longer than anything here takes on a busy machine; nothing waits for it to pass."""


class SteppedClock:
    """The real clocks, with the wall clock set forward by `step`."""

    def __init__(self):
        self._real = SystemClock()
        self.step = 0.0

    def monotonic(self):
        return self._real.monotonic()

    def unix(self):
        return self._real.unix() + self.step


@pytest.fixture
def overruns():
    return []


@pytest.fixture
def clock():
    return SteppedClock()


@pytest.fixture
def schedule(overruns, clock):
    made = Schedule(clock, overruns.append)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("previous", "now", "due"),
    [
        pytest.param(None, 0, 0, id="first-at-once"),
        pytest.param(0, 0, 5, id="next"),
        pytest.param(0, 4.9, 5, id="early"),
        pytest.param(0, 5, 10, id="due-now-is-the-one-being-run"),
        pytest.param(0, 12, 15, id="two-missed-keep-the-beat"),
        pytest.param(0, 14.999, 15, id="just-before-the-beat"),
        pytest.param(0, 10 * 365 * 86400 + 1, 10 * 365 * 86400 + 5, id="ten-years-forward"),
        pytest.param(0, -3600, 5, id="an-hour-back"),
    ],
)
def test_next_run_is_the_first_beat_after_now(previous, now, due):
    before = None if previous is None else NOON + timedelta(seconds=previous)
    found = Every(5.0).get_next_fire_time(before, NOON + timedelta(seconds=now))
    assert found == NOON + timedelta(seconds=due)


def test_a_step_of_a_century_is_one_computation():
    """Counting 31 thousand million missed runs one by one would not end."""
    century = timedelta(days=36500)
    assert Every(0.1).get_next_fire_time(NOON, NOON + century) == NOON + century + timedelta(seconds=0.1)


def test_the_first_job_runs_at_once(schedule):
    ran = threading.Event()
    schedule.every(3600.0, "first", ran.set)
    schedule.start()
    assert ran.wait(PATIENCE)


def test_first_runs_are_spread_over_the_interval(schedule, clock):
    for number in range(5):
        schedule.every(10.0, f"job {number}", lambda: None)
    now = clock.unix()
    waits = [job.next_run_time.timestamp() - now for job in schedule._scheduler.get_jobs()]
    assert sorted(waits) == pytest.approx([0.0, 2.36, 4.72, 6.18, 8.54], abs=0.2)


def test_a_slow_job_delays_no_other(schedule, overruns):
    released, fast = threading.Event(), []
    three_times = threading.Event()

    def tick():
        fast.append(1)
        if len(fast) == 3:
            three_times.set()

    schedule.every(0.05, "slow", lambda: released.wait(PATIENCE))
    schedule.every(0.05, "fast", tick)
    schedule.start()
    try:
        assert three_times.wait(PATIENCE)
    finally:
        released.set()
    assert "slow" in overruns
    assert "fast" not in overruns


def test_hundreds_of_hanging_jobs_leave_room_for_one_more(schedule):
    released, ran = threading.Event(), threading.Event()
    for number in range(200):
        schedule.every(0.05, f"hung {number}", lambda: released.wait(PATIENCE))
    schedule.every(0.05, "fast", ran.set)
    schedule.start()
    try:
        assert ran.wait(PATIENCE)
    finally:
        released.set()


def test_a_job_that_raises_runs_again(schedule):
    ran, twice = [], threading.Event()

    def breaks():
        ran.append(1)
        if len(ran) == 2:
            twice.set()
        raise RuntimeError("a fault of ours")

    schedule.every(0.05, "broken", breaks)
    schedule.start()
    assert twice.wait(PATIENCE)


@pytest.mark.parametrize("step", [pytest.param(-3600.0, id="back"), pytest.param(86400.0 * 3650, id="years-forward")])
def test_a_step_of_the_wall_clock_is_healed_once(schedule, clock, step):
    ran = threading.Event()
    schedule.every(3600.0, "hourly", ran.set)
    schedule.start()
    assert ran.wait(PATIENCE)
    assert schedule.follow_clock() is False

    clock.step = step

    assert schedule.follow_clock() is True
    assert [job.next_run_time.timestamp() for job in schedule._scheduler.get_jobs()] == [pytest.approx(clock.unix(), abs=2.0)]
    assert schedule.follow_clock() is False


def test_a_clock_that_is_slewed_needs_no_healing(schedule, clock):
    schedule.every(3600.0, "hourly", lambda: None)
    clock.step = 0.5
    assert schedule.follow_clock() is False


def test_slewing_for_long_is_no_step(schedule, clock):
    """NTP may slew by seconds in all, each heartbeat seeing little of it."""
    for tenth in range(50):
        clock.step = tenth / 10
        assert schedule.follow_clock() is False


def test_a_removed_job_runs_no_more(schedule, overruns):
    ran = threading.Event()
    schedule.every(3600.0, "gone", ran.set)
    schedule.remove("gone")
    schedule.start()
    assert not ran.wait(0.1)


def test_stop_does_not_wait_for_a_job(schedule, clock):
    started, released = threading.Event(), threading.Event()

    def hangs():
        started.set()
        released.wait(PATIENCE)

    schedule.every(3600.0, "hung", hangs)
    schedule.start()
    assert schedule.running
    assert started.wait(PATIENCE)
    began = clock.monotonic()
    schedule.stop()
    took = clock.monotonic() - began
    released.set()
    assert took < 0.5
    assert not schedule.running


def test_stopping_twice_changes_nothing(schedule):
    schedule.start()
    schedule.stop()
    schedule.stop()
    assert not schedule.running
