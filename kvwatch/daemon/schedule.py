"""Jobs on an interval: APScheduler, on the beat of the monotonic clock.

APScheduler compares wall times. A job's beats are kept in monotonic time here, and only the next one is told as wall time;
when the wall clock was stepped, every job's next beat is told anew, so that polls keep their places in the interval.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, JobEvent
from apscheduler.executors.base import BaseExecutor, MaxInstancesReachedError, run_job
from apscheduler.job import Job
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from kvwatch.clock import Clock

_log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 1.0
"""The longest the scheduler sleeps: so soon is a step of the wall clock seen."""
_STEP_SECONDS: Final = 0.1
"""A wall clock that moved this much against the monotonic one was stepped; slewing is slower and needs no help."""
_EARLY_SECONDS: Final = 0.001
"""A run this little before its beat (wall times are cut to microseconds) was that beat's."""
_GOLDEN_RATIO: Final = 0.618034


class Beat(BaseTrigger):  # type: ignore[misc]  # apscheduler has no types
    """Due at *first* (monotonic seconds) and every *interval* seconds after it; beats that were missed are skipped."""

    def __init__(self, clock: Clock, first: float, interval: float) -> None:
        self._clock = clock
        self._first = first
        self._interval = interval

    def after(self, monotonic: float) -> float:
        """The first beat later than that."""
        return self._first + self._interval * max(0.0, (monotonic - self._first) // self._interval + 1.0)

    def wall_after(self, monotonic: float) -> datetime:
        """When the wall clock, as it is set now, will show the first beat later than that."""
        return datetime.fromtimestamp(self._clock.unix(), UTC) + timedelta(seconds=self.after(monotonic) - self._clock.monotonic())

    def get_next_fire_time(self, _previous: datetime | None, now: datetime) -> datetime:
        """The next beat; later than *now* even if the clock was set back since (APScheduler asks until it is)."""
        return max(self.wall_after(self._clock.monotonic() + _EARLY_SECONDS), now + timedelta.resolution)


class _Threads(BaseExecutor):  # type: ignore[misc]
    """A thread for each run: a job that hangs delays no other, and a thread that cannot be started costs that run only."""

    def _do_submit_job(self, job: Job, run_times: list[datetime]) -> None:
        try:
            threading.Thread(target=self._run, args=(job, run_times), name=f"poll {job.name}", daemon=True).start()
        except RuntimeError as error:
            _log.warning("schedule.no_thread", job=job.name, detail=str(error))
            raise MaxInstancesReachedError(job) from error  # heard as every run that was left out

    def _run(self, job: Job, run_times: list[datetime]) -> None:
        self._run_job_success(job.id, run_job(job, job._jobstore_alias, run_times, self._logger.name))  # noqa: SLF001 - as its own executors do


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]
    """Looks before each pass whether the wall clock was stepped, and goes on whatever fails in one."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(
            timezone=UTC, executors={"default": _Threads()}, job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1}
        )
        self._clock = clock
        self._looked = clock.monotonic()
        self._offset = clock.unix() - self._looked

    def follow_wall_clock(self) -> None:
        """Tell every job's next beat in the time the wall clock shows now, if that was stepped."""
        now, since = self._clock.monotonic(), self._looked
        offset = self._clock.unix() - now
        stepped = abs(offset - self._offset) > _STEP_SECONDS
        self._looked, self._offset = now, offset
        if stepped:
            for job in self.get_jobs():
                with suppress(JobLookupError):  # removed meanwhile
                    job.modify(next_run_time=job.trigger.wall_after(since))

    def _process_jobs(self) -> float:
        try:
            self.follow_wall_clock()
            wait = super()._process_jobs()
        except Exception:  # noqa: BLE001 - whatever fails here must not end all polls
            _log.exception("schedule.failed")
            return _LOOK_SECONDS
        return _LOOK_SECONDS if wait is None else min(wait, _LOOK_SECONDS)


class Schedule:
    """Runs jobs in threads until it is stopped.

    *overrun* is told the name of a job whose run was left out, because the one before still runs or no thread could be started.
    """

    def __init__(self, clock: Clock, overrun: Callable[[str], None]) -> None:
        self._clock = clock
        self._overrun = overrun
        self._added = 0
        self._jobs: dict[str, Job] = {}
        self._scheduler: Any = _Scheduler(clock)
        self._scheduler.add_listener(self._left_out, EVENT_JOB_MAX_INSTANCES)
        self._scheduler.add_listener(self._failed, EVENT_JOB_ERROR)

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

    @property
    def names(self) -> tuple[str, ...]:
        """The jobs there are."""
        return tuple(self._jobs)

    def every(self, seconds: float, name: str, job: Callable[[], None], *, at_once: bool = False) -> None:
        """Run *job* every *seconds*. The first one starts at once, later ones spread over the interval unless told *at_once* too."""
        wait = 0.0 if at_once else (self._added * _GOLDEN_RATIO) % 1.0 * seconds
        self._added += not at_once
        now = self._clock.monotonic()
        beat = Beat(self._clock, now + wait, seconds)
        self._jobs[name] = self._scheduler.add_job(job, beat, name=name, next_run_time=beat.wall_after(now - seconds))

    def remove(self, name: str) -> None:
        """Run that job no more; one that is not there is no error."""
        job = self._jobs.pop(name, None)
        if job is not None:
            with suppress(JobLookupError):
                job.remove()

    def _left_out(self, event: JobEvent) -> None:
        job = self._scheduler.get_job(event.job_id)
        if job is not None:
            self._overrun(job.name)

    def _failed(self, event: JobEvent) -> None:
        job = self._scheduler.get_job(event.job_id)
        _log.error("job.failed", job=job.name if job else event.job_id, detail=str(event.exception), traceback=event.traceback)
