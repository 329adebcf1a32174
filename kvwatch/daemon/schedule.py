"""Jobs on an interval: APScheduler, with what it gets wrong for a watchdog taken out.

Its clock is the wall clock. A step back would silence every job for as long as the step, a step forward would make it
enumerate every run it believes it missed. Here a job's next run is computed in one step, and `Schedule.follow_clock` restarts the
intervals when wall clock and monotonic clock drift apart.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, JobSubmissionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from kvwatch.clock import Clock

_MOST_THREADS: Final = 1024
"""A thread exists only while no idle one can take a job, so this bounds the targets that may hang at once."""
_STEP_SECONDS: Final = 1.0
_GOLDEN_RATIO: Final = 0.618034


class Every(BaseTrigger):  # type: ignore[misc]  # apscheduler has no types
    """Every *seconds*; runs that were missed are skipped, however many."""

    def __init__(self, seconds: float) -> None:
        self._interval = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """The first due time after *now*, on the beat of *previous*."""
        if previous is None:
            return now
        due = previous + self._interval
        return due if due > now else due + self._interval * ((now - due) // self._interval + 1)


class Schedule:
    """Runs jobs in threads until it is stopped; *overrun* is told the name of a job that was still running when it was due again."""

    def __init__(self, clock: Clock, overrun: Callable[[str], None]) -> None:
        self._clock = clock
        self._offset = self._wall_minus_monotonic()
        self._added = 0
        self._scheduler: Any = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(_MOST_THREADS)},
            job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1},
        )

        def heard(event: JobSubmissionEvent) -> None:
            overrun(event.job_id)

        self._scheduler.add_listener(heard, EVENT_JOB_MAX_INSTANCES)

    def start(self) -> None:
        """Begin to run the jobs."""
        self._scheduler.start()

    def stop(self) -> None:
        """Start no job any more; those that run are not waited for."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    @property
    def running(self) -> bool:
        """Whether jobs are being started."""
        return bool(self._scheduler.running)

    def every(self, seconds: float, name: str, job: Callable[[], None], *, at_once: bool = False) -> None:
        """Run *job* every *seconds*. The first one starts at once, later ones spread over the interval unless told *at_once* too."""
        wait = 0.0 if at_once else (self._added * _GOLDEN_RATIO) % 1.0 * seconds
        self._added += not at_once
        self._scheduler.add_job(job, Every(seconds), id=name, next_run_time=self._now() + timedelta(seconds=wait))

    def remove(self, name: str) -> None:
        """Run that job no more."""
        self._scheduler.remove_job(name)

    def follow_clock(self) -> bool:
        """Start the intervals anew if the wall clock was stepped; true if it was. Call it about once a second."""
        offset = self._wall_minus_monotonic()
        stepped = abs(offset - self._offset) > _STEP_SECONDS
        self._offset = offset
        if stepped:
            for job in self._scheduler.get_jobs():
                job.modify(next_run_time=self._now())
        return stepped

    def _wall_minus_monotonic(self) -> float:
        return self._clock.unix() - self._clock.monotonic()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.unix(), UTC)
