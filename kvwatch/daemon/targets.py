"""The targets that are watched now: looked for again and again, each with a job, a history and verdicts of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from kvwatch.assess import judge_for
from kvwatch.clock import Clock, SystemClock
from kvwatch.config.settings import Settings, TargetSettings
from kvwatch.config.values import parse_shard
from kvwatch.daemon.schedule import Schedule
from kvwatch.daemon.target_watch import TargetWatch
from kvwatch.daemon.watch_log import announce_discovery
from kvwatch.exporter.metrics.telemetry import Telemetry
from kvwatch.model import Scrape, TargetView
from kvwatch.poller.discovery import Discovery
from kvwatch.poller.target import TargetReader
from kvwatch.runs.drift import read_baseline

_log = structlog.get_logger(__name__)

_DISCOVERY: Final = "\0discovery"
"""Name of the job that looks for targets; no target can have it."""
_MISSED_POLLS: Final = 3
"""Polls that may fail to end, of all targets together, before polling counts as broken off. Lower: late polls
of a busy host have the liveness probe restart kvwatch."""


class WatchedTargets:
    """A watch for each target that the settings, their files and their names say there is now. Raises `ConfigError` if they cannot be used.

    *read* asks a target, where it is not asked over HTTP; *pace* is how many seconds *clock* counts in a real one. *publish* is given the
    view of each poll that ended, *forget* the name of each target that left; of one target nothing is published after that.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        telemetry: Telemetry,
        *,
        publish: Callable[[TargetView], None],
        forget: Callable[[str], None],
        read: Callable[[TargetSettings], Scrape] | None = None,
        pace: float = 1.0,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._publish = publish
        self._forget = forget
        self._read = read
        self._pace = pace
        self._baseline = read_baseline(settings.baseline)
        self._schedule = Schedule(SystemClock(), self._overrun)
        self._discovery = self._discovery_of(settings)
        self._discovery_errors: tuple[str, ...] = ()
        self._discovered = False
        self._sources: Mapping[str, str] = {}
        self._watches: dict[str, TargetWatch] = {}
        self._lock = threading.Lock()
        self._following = threading.Lock()
        self._last_tick = clock.monotonic()

    def start(self) -> None:
        """Begin to look for targets and to poll."""
        self._follow(self._discovery.fixed())
        self._look_regularly()
        self._schedule.start()

    def stop(self) -> None:
        """Poll no more; calling it again changes nothing."""
        self._schedule.stop()

    def reconfigure(self, settings: Settings) -> None:
        """Look for targets and judge them by other settings, keeping every history; raises `ConfigError` before anything has changed."""
        discovery, baseline = self._discovery_of(settings), read_baseline(settings.baseline)
        with self._following:
            self._settings, self._baseline = settings, baseline
            discovery.succeed(self._discovery)
            self._discovery = discovery
            for watch in self._watches.values():
                self._reconfigure(watch, watch.target)
        self._schedule.remove(_DISCOVERY)
        self._look_regularly()

    def views(self) -> tuple[TargetView, ...]:
        """The last word on every target, by name; never waits for one."""
        with self._lock:
            watches = list(self._watches.values())
        return tuple(sorted((watch.view for watch in watches), key=lambda view: view.name))

    def named_with(self, name: str) -> tuple[TargetView, ...]:
        """The last word on the other targets of the same ``dns+`` name, the same file, or the configuration."""
        source = self._sources.get(name, "")
        return tuple(view for view in self.views() if view.name != name and self._sources.get(view.name, "") == source)

    def polling(self) -> bool:
        """Whether polls are still being made."""
        patience = _MISSED_POLLS * self._settings.poll.interval + self._settings.poll.deadline
        return self._schedule.running and (not self._watches or self._clock.monotonic() - self._last_tick < patience)

    def all_polled(self) -> bool:
        """Whether it is known what to watch, and every target was polled once."""
        return self._discovered and all(view.at is not None for view in self.views())

    def discover(self) -> None:
        """Look which targets there are now, and watch those."""
        discovery = self._discovery
        found = discovery.discover()
        announce_discovery(self._discovery_errors, found.errors)
        self._discovery_errors = found.errors
        with self._following:
            if discovery is self._discovery:  # else it was configured anew meanwhile
                self._sources = found.sources
                self._follow(found.targets)
                self._discovered = True

    def _discovery_of(self, settings: Settings) -> Discovery:
        """What finds the targets of this shard."""
        shard = parse_shard(settings.shard)
        self._telemetry.sharded(*shard)
        return Discovery(settings.targets, settings.discovery, shard=shard)

    def _look_regularly(self) -> None:
        """Names and files in a thread of their own: a resolver that hangs must hold up neither known targets nor a signal to stop."""
        self._schedule.every(self._settings.discovery.refresh / self._pace, _DISCOVERY, self.discover, at_once=True)

    def _follow(self, targets: Sequence[TargetSettings]) -> None:
        """Add watches for the targets that came, and end those of the targets that left."""
        wanted = {target.name: target for target in targets}
        for name, watch in list(self._watches.items()):
            if name not in wanted or wanted[name].url != watch.target.url:
                self._remove(name)
        for name, target in wanted.items():
            if name not in self._watches:
                self._add(target)
            elif self._watches[name].target != target:
                self._reconfigure(self._watches[name], target)

    def _reconfigure(self, watch: TargetWatch, target: TargetSettings) -> None:
        """Go on watching the same URL, as the settings say now."""
        watch.reconfigure(target, self._reader(target), self._settings.policy, self._settings.known_of(target), self._baseline)

    def _add(self, target: TargetSettings) -> None:
        interval = self._settings.poll.interval
        watch = TargetWatch(
            target,
            interval,
            read=self._reader(target),
            judge=judge_for(self._settings, target, baseline=self._baseline),
            clock=self._clock,
            telemetry=self._telemetry,
            publish=self._take,
            others=partial(self.named_with, target.name),
        )
        self._telemetry.target_added(target.name)
        if not self._watches:
            self._last_tick = self._clock.monotonic()  # until now there was nothing to poll
        with self._lock:
            self._watches[target.name] = watch
        self._schedule.every(interval / self._pace, target.name, watch.tick)
        _log.info("target.added", target=target.name, url=target.url)

    def _reader(self, target: TargetSettings) -> Callable[[], Scrape]:
        """How the target is asked; what its labels mean is remembered as long as it is watched."""
        if self._read is not None:
            return partial(self._read, target)
        return TargetReader(self._settings, self._clock, target)

    def _remove(self, name: str) -> None:
        self._schedule.remove(name)
        with self._lock:
            del self._watches[name]
        self._telemetry.target_removed(name)
        self._forget(name)
        _log.info("target.removed", target=name)

    def _take(self, watch: TargetWatch, view: TargetView) -> None:
        """Publish the view of a poll that ended."""
        self._last_tick = view.at if view.at is not None else self._last_tick
        with self._lock:  # held to the end: what `_remove` forgets must not be published afterwards
            if self._watches.get(view.name) is watch:  # else it was removed or replaced while this poll was under way
                self._publish(view)

    def _overrun(self, name: str) -> None:
        if name != _DISCOVERY:
            self._telemetry.tick_overrun(name)
