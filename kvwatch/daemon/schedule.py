"""Jobs on an interval of the monotonic clock: whatever the host's clock is set to, polls keep their beat.

One thread keeps the timetable, others run the jobs, so that one that hangs delays no other.
"""

from __future__ import annotations

import sched
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from kvwatch.clock import Clock

_log = structlog.get_logger(__name__)

_MOST_THREADS: Final = 1024
"""A thread exists only while no idle one can take a job, so this bounds the targets that may hang at once."""
_LONGEST_SLEEP: Final = 60.0
_GOLDEN_RATIO: Final = 0.618034


def next_beat(due: float, interval: float, now: float) -> float:
    """The first beat after *now* (seconds) of a job that was due at *due*; beats that were missed are skipped, however many."""
    return due + interval * max(1.0, (now - due) // interval + 1.0)


class _Job:
    """One job: never run twice at once."""

    def __init__(self, name: str, interval: float, work: Callable[[], None]) -> None:
        self.name = name
        self.interval = interval
        self.removed = False
        self.busy = False
        """From when it is handed to the threads until it has ended."""
        self.begun = False
        self._work = work

    def run(self) -> None:
        self.begun = True
        try:
            if not self.removed:
                self._work()
        except Exception:  # noqa: BLE001 - an error of ours ends neither the thread nor the later runs
            _log.exception("job.failed", job=self.name)
        finally:
            self.busy = False


class Schedule:
    """Runs jobs in threads until it is stopped; *overrun* is told the name of a job that was still running when it was due again."""

    def __init__(self, clock: Clock, overrun: Callable[[str], None]) -> None:
        self._clock = clock
        self._overrun = overrun
        self._wake = threading.Event()
        self._stopped = False
        self._added = 0
        self._jobs: dict[str, _Job] = {}
        self._timetable = sched.scheduler(clock.monotonic, self._wake.wait)
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="poll")
        self._keeper = threading.Thread(target=self._keep_time, name="schedule", daemon=True)

    def start(self) -> None:
        """Begin to run the jobs."""
        self._keeper.start()

    def stop(self) -> None:
        """Start no job any more; those that run are not waited for."""
        self._stopped = True
        self._wake.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def running(self) -> bool:
        """Whether jobs are being started."""
        return self._keeper.is_alive() and not self._stopped

    @property
    def names(self) -> tuple[str, ...]:
        """The jobs there are."""
        return tuple(self._jobs)

    def every(self, seconds: float, name: str, job: Callable[[], None], *, at_once: bool = False) -> None:
        """Run *job* every *seconds*. The first one starts at once, later ones spread over the interval unless told *at_once* too."""
        wait = 0.0 if at_once else (self._added * _GOLDEN_RATIO) % 1.0 * seconds
        self._added += not at_once
        made = self._jobs[name] = _Job(name, seconds, job)
        self._enter(made, self._clock.monotonic() + wait)
        self._wake.set()

    def remove(self, name: str) -> None:
        """Run that job no more; one that is not there is no error."""
        job = self._jobs.pop(name, None)
        if job is not None:
            job.removed = True

    def _keep_time(self) -> None:
        while not self._stopped:
            try:
                wait = self._timetable.run(blocking=False)
            except Exception:  # noqa: BLE001 - whatever fails here must not end all polls
                _log.exception("schedule.failed")
                wait = 1.0
            self._wake.wait(min(_LONGEST_SLEEP if wait is None else wait, _LONGEST_SLEEP))
            self._wake.clear()

    def _enter(self, job: _Job, due: float) -> None:
        self._timetable.enterabs(due, 0, self._due, (job, due))

    def _due(self, job: _Job, due: float) -> None:
        if job.removed or self._stopped:
            return
        self._enter(job, next_beat(due, job.interval, self._clock.monotonic()))
        if not job.busy:
            job.busy, job.begun = True, False
            self._hand_over(job.run)
            return
        self._overrun(job.name)
        if not job.begun:  # it waits for a thread that could not be started then
            self._hand_over(lambda: None)

    def _hand_over(self, work: Callable[[], None]) -> None:
        """Let a thread do it. Where none can be started it waits for one that can: the pool keeps what it was given."""
        try:
            self._threads.submit(work)
        except RuntimeError as error:
            if not self._stopped:
                _log.warning("schedule.no_thread", detail=str(error))
