"""Jobs on an interval, whatever the jobs and the clocks do."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from apscheduler.schedulers import base

from kvwatch.clock import SystemClock
from kvwatch.daemon.schedule import Beat, Schedule

PATIENCE = 30.0
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


class SetClock:
    """A clock that stands where it is set."""

    def __init__(self, monotonic: float = 100.0, unix: float = 1_700_000_000.0) -> None:
        self.at = monotonic
        self.wall = unix

    def monotonic(self) -> float:
        return self.at

    def unix(self) -> float:
        return self.wall


@pytest.mark.parametrize(
    ("now", "beat"),
    [
        pytest.param(0.0, 5.0, id="due-now-is-the-one-being-run"),
        pytest.param(4.9, 5.0, id="just-before-the-beat"),
        pytest.param(5.0, 10.0, id="on-the-beat"),
        pytest.param(12.0, 15.0, id="two-missed-keep-the-beat"),
        pytest.param(-3.0, 0.0, id="before-it-was-due"),
        pytest.param(3600.0 * 24 * 365, 3600.0 * 24 * 365 + 5.0, id="frozen-for-a-year"),
    ],
)
def test_next_run_is_the_first_beat_after_now(now, beat):
    assert Beat(SetClock(), 0.0, 5.0).after(now) == beat


@pytest.mark.parametrize("step", [-3600.0, -0.3, 0.0, 0.3, 3600.0])
def test_a_beat_is_told_in_the_time_the_wall_clock_shows(step):
    clock = SetClock(monotonic=102.0)
    clock.wall += step
    assert Beat(clock, 100.0, 5.0).wall_after(clock.at).timestamp() == pytest.approx(1_700_000_003.0 + step)


def test_a_run_microseconds_before_its_beat_is_not_run_again_on_the_beat():
    clock = SetClock(monotonic=104.999999)
    due = Beat(clock, 100.0, 5.0).get_next_fire_time(None, datetime.fromtimestamp(clock.wall, UTC))
    assert due.timestamp() == pytest.approx(clock.wall + 5.000001, abs=1e-5)


def test_a_clock_set_back_while_a_run_is_looked_up_gives_a_time_after_the_one_asked_for():
    """APScheduler asks again until it is, so anything else would hold all jobs for as long as the step."""
    clock = SetClock(unix=1_700_000_000.0 - 3600.0)
    asked = datetime.fromtimestamp(1_700_000_000.0, UTC)
    assert Beat(clock, 100.0, 5.0).get_next_fire_time(None, asked) > asked


def test_the_first_job_runs_at_once(schedule):
    ran = threading.Event()
    schedule.every(3600.0, "first", ran.set)
    schedule.start()
    assert ran.wait(PATIENCE)


def waits(schedule, clock):
    """Seconds until each job's next run, in the order they were added."""
    return [job.next_run_time.timestamp() - clock.unix() for job in schedule._jobs.values()]


def test_first_runs_are_spread_over_the_interval(overruns):
    clock = SetClock()
    schedule = Schedule(clock, overruns.append)
    for number in range(5):
        schedule.every(10.0, f"job {number}", lambda: None)
    assert sorted(waits(schedule, clock)) == pytest.approx([0.0, 2.36068, 4.72136, 6.18034, 8.54102], abs=1e-4)


@pytest.mark.parametrize("step", [-86400.0, -3600.0, -1.0, 1.0, 3600.0, 86400.0 * 365])
def test_a_step_of_the_wall_clock_leaves_every_job_its_place_in_the_interval(overruns, step):
    """A second has passed when it is seen: the job that was due in that second is late and still runs."""
    clock = SetClock()
    schedule = Schedule(clock, overruns.append)
    for number in range(5):
        schedule.every(10.0, f"job {number}", lambda: None)
    schedule._scheduler.follow_wall_clock()
    clock.at += 2.5
    clock.wall += 2.5 + step
    for _again in range(2):  # seen once, followed once; looking again changes nothing
        schedule._scheduler.follow_wall_clock()
        followed = sorted(waits(schedule, clock))
        assert followed == pytest.approx([-0.13932, 2.22136, 3.68034, 6.04102, 7.5], abs=1e-4)


def test_a_job_removed_while_the_clock_is_followed_is_no_error(overruns, monkeypatch):
    clock = SetClock()
    schedule = Schedule(clock, overruns.append)
    for name in ("gone", "stays"):
        schedule.every(10.0, name, lambda: None)
    listed = schedule._scheduler.get_jobs()
    schedule.remove("gone")
    monkeypatch.setattr(schedule._scheduler, "get_jobs", lambda: listed)
    clock.wall += 3600.0
    schedule._scheduler.follow_wall_clock()
    assert schedule.names == ("stays",)
    assert waits(schedule, clock) == pytest.approx([6.18034], abs=1e-4)


class Stepped(SystemClock):
    """The real clock, with a wall clock that somebody sets."""

    def __init__(self) -> None:
        self.step = 0.0

    def unix(self) -> float:
        return super().unix() + self.step


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_jobs_go_on_when_the_wall_clock_is_set(overruns, monkeypatch, step):
    clock = Stepped()

    class Shown(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(clock.unix(), tz)

    monkeypatch.setattr(base, "datetime", Shown)
    schedule = Schedule(clock, overruns.append)
    ran = threading.Semaphore(0)
    schedule.every(0.05, "poll", ran.release)
    schedule.start()
    try:
        for _before in range(3):
            assert ran.acquire(timeout=PATIENCE)
        clock.step = step
        for _after in range(5):
            assert ran.acquire(timeout=PATIENCE)
    finally:
        schedule.stop()


def test_a_pass_that_fails_ends_no_polls(schedule, monkeypatch):
    real, failed = schedule._scheduler.follow_wall_clock, []

    def fails_once():
        if not failed:
            failed.append(1)
            raise RuntimeError("a fault of ours")
        real()

    monkeypatch.setattr(schedule._scheduler, "follow_wall_clock", fails_once)
    ran = threading.Event()
    schedule.every(0.05, "poll", ran.set)
    schedule.start()
    assert ran.wait(PATIENCE)
    assert failed


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
    assert overruns.count("patient") == 16


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
    assert took < PATIENCE / 2
    assert not schedule.running


def test_stopping_twice_changes_nothing(schedule):
    schedule.start()
    schedule.stop()
    schedule.stop()
    assert not schedule.running
