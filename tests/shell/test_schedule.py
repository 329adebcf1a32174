"""Jobs on an interval, whatever the jobs and the clocks do."""

from __future__ import annotations

import threading

import pytest

from kvwatch.clock import SystemClock
from kvwatch.daemon.schedule import Schedule, next_beat

PATIENCE = 5.0
"""Longer than anything here takes on a busy machine; nothing waits for it to pass."""


@pytest.fixture
def overruns():
    return []


@pytest.fixture
def clock():
    return SystemClock()


@pytest.fixture
def schedule(overruns, clock):
    made = Schedule(clock, overruns.append)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("now", "beat"),
    [
        pytest.param(0.0, 5.0, id="next"),
        pytest.param(4.9, 5.0, id="early"),
        pytest.param(5.0, 10.0, id="due-now-is-the-one-being-run"),
        pytest.param(12.0, 15.0, id="two-missed-keep-the-beat"),
        pytest.param(14.999, 15.0, id="just-before-the-beat"),
        pytest.param(-3.0, 5.0, id="before-it-was-due"),
        pytest.param(3600.0 * 24 * 365, 3600.0 * 24 * 365 + 5.0, id="frozen-for-a-year"),
    ],
)
def test_next_run_is_the_first_beat_after_now(now, beat):
    assert next_beat(0.0, 5.0, now) == beat


def test_the_first_job_runs_at_once(schedule):
    ran = threading.Event()
    schedule.every(3600.0, "first", ran.set)
    schedule.start()
    assert ran.wait(PATIENCE)


def test_first_runs_are_spread_over_the_interval(overruns):
    class Still:
        def monotonic(self):
            return 100.0

    schedule = Schedule(Still(), overruns.append)  # type: ignore[arg-type]
    for number in range(5):
        schedule.every(10.0, f"job {number}", lambda: None)
    waits = [event.time - 100.0 for event in schedule._timetable.queue]
    assert waits == pytest.approx([0.0, 2.36068, 4.72136, 6.18034, 8.54102], abs=1e-4)
    schedule.stop()


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


def test_a_job_for_which_no_thread_can_be_started_runs_when_one_can(schedule, overruns, monkeypatch):
    """Sixteen failures, then threads again: the first run is not waited for for ever."""
    ran, failures = threading.Event(), []
    real = threading.Thread.start

    def start(thread):
        if thread.name.startswith("poll") and len(failures) < 16:
            failures.append(thread)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    schedule.every(0.05, "patient", ran.set)
    schedule.start()
    assert ran.wait(PATIENCE)
    assert len(failures) == 16
    assert "patient" in overruns


def test_removing_a_job_that_is_not_there_is_no_error(schedule):
    schedule.remove("never added")
    assert schedule.names == ()


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
