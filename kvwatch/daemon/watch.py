"""The daemon: wires the parts, keeps a watch per target with a job, a history and verdicts of its own, and stops within a second.

What the targets share is the HTTP front, which only reads the last views.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from kvwatch import __version__
from kvwatch.assess import judge_for
from kvwatch.clock import Clock, SystemClock
from kvwatch.config.settings import Settings, TargetSettings
from kvwatch.config.values import parse_shard
from kvwatch.daemon.reloading import differing
from kvwatch.daemon.schedule import Schedule
from kvwatch.daemon.target_watch import TargetWatch
from kvwatch.daemon.watch_log import announce_discovery
from kvwatch.exporter.alertmanager.push import AlertmanagerPush, instance_of
from kvwatch.exporter.metrics.collector import ViewCollector
from kvwatch.exporter.metrics.telemetry import Telemetry
from kvwatch.exporter.web.access import Access
from kvwatch.exporter.web.chart_history import ChartHistory
from kvwatch.exporter.web.login import with_login
from kvwatch.exporter.web.page import StatusPage
from kvwatch.exporter.web.routes import Sources, make_app
from kvwatch.exporter.web.runbook import runbook
from kvwatch.exporter.web.server import Server, serve
from kvwatch.exporter.web.status import status_json
from kvwatch.model import Scrape, TargetView
from kvwatch.poller.discovery import Discovery
from kvwatch.poller.target import TargetReader
from kvwatch.runs.drift import read_baseline

_log = structlog.get_logger(__name__)

_DISCOVERY: Final = "\0discovery"
"""No target can have this name."""
_MISSED_POLLS: Final = 3


class Daemon:
    """Everything that runs. `start` it, `stop` it.

    *read* is how a target is asked, so that tests can answer themselves; *pace* is how many seconds *clock* counts in a
    real one, which the demo's does faster.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        read: Callable[[TargetSettings], Scrape] | None = None,
        *,
        pace: float = 1.0,
        reload: Callable[[], Sequence[str]] | None = None,
        log_lines_dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        self._settings = settings
        self._pace, self._baseline = pace, read_baseline(settings.baseline)
        self._clock = clock
        self._read = read
        self._reload_over_http = reload if settings.web.enable_lifecycle else None
        self._telemetry = Telemetry(log_lines_dropped)
        self._push = AlertmanagerPush(
            settings.alertmanager, clock, self._telemetry, poll_interval=settings.poll.interval, instance=instance_of(settings.web)
        )
        self._history = ChartHistory()
        self._schedule = Schedule(SystemClock(), self._overrun)
        self._discovery = self._discovery_of(settings)
        self._discovery_errors: tuple[str, ...] = ()
        self._discovered = False
        self._watches: dict[str, TargetWatch] = {}
        self._sources: Mapping[str, str] = {}
        self._lock = threading.Lock()
        self._last_tick = clock.monotonic()
        self._server: Server | None = None
        self._collector = ViewCollector(self.views, clock, fast_window=settings.window.fast, slow_window=settings.window.slow)
        self._telemetry.registry.register(self._collector)
        self._page = StatusPage(self.views, clock, self._history, storm_ratio=settings.thresholds.storm_ratio)
        self._following = threading.Lock()
        self._telemetry.config_read(clock.unix(), good=True)

    @property
    def url(self) -> str:
        """Where the HTTP front answers; raises `RuntimeError` before `start`."""
        if self._server is None:
            raise RuntimeError("the daemon has not been started")
        return self._server.url

    def start(self) -> None:
        """Bind the port and begin to poll. Raises `ConfigError` when the port or the certificate cannot be used."""
        host, port = self._settings.web.host_port
        sources = Sources(
            registry=self._telemetry.registry,
            page=self._page.render,
            status=lambda: status_json(self.views(), self._clock),
            runbook=runbook,
            healthy=self.healthy,
            ready=self.ready,
            reload=self._reload_over_http,
        )
        access = Access(self._settings.web)
        self._server = serve(with_login(make_app(sources), lambda: access.users), host=host, port=port, tls=access.context)
        self._push.start()
        self._follow(self._discovery.fixed())
        # Names and files in a thread of their own: a resolver that hangs must hold up neither these targets nor a signal to stop.
        self._schedule.every(self._settings.discovery.refresh / self._pace, _DISCOVERY, self._discover, at_once=True)
        self._schedule.start()
        _log.info("kvwatch.started", version=__version__, url=self._server.url, shard=self._settings.shard, targets=sorted(self._watches))

    def stop(self) -> None:
        """Stop polling and serving; calling it again changes nothing."""
        self._schedule.stop()
        self._push.stop()
        if self._server is not None:
            self._server.close()
            self._server = None

    def reload(self, settings: Settings) -> tuple[str, ...]:
        """Watch and judge by other settings, keeping every history; returns the settings that only a restart changes.

        Certificates and the file of the web configuration need no reload: they are read again when they change.
        """
        needs_restart = differing(self._settings, settings)
        discovery, baseline = self._discovery_of(settings), read_baseline(settings.baseline)
        with self._following:
            fixed = {"web": self._settings.web, "alertmanager": self._settings.alertmanager, "log": self._settings.log}
            poll = settings.poll.model_copy(update={"interval": self._settings.poll.interval})
            self._settings = settings.model_copy(update={**fixed, "poll": poll})
            self._page.storm_ratio = settings.thresholds.storm_ratio
            self._collector.name_windows(settings.window.fast, settings.window.slow)
            discovery.succeed(self._discovery)
            self._discovery, self._baseline = discovery, baseline
            for watch in self._watches.values():
                self._reconfigure(watch, watch.target)
        self._schedule.remove(_DISCOVERY)
        self._schedule.every(settings.discovery.refresh / self._pace, _DISCOVERY, self._discover, at_once=True)
        self._telemetry.config_read(self._clock.unix(), good=True)
        return needs_restart

    def reload_failed(self) -> None:
        """The configuration could not be read again; everything goes on as before."""
        self._telemetry.config_read(self._clock.unix(), good=False)

    def views(self) -> tuple[TargetView, ...]:
        """The last word on every target, by name; never waits for one."""
        with self._lock:
            watches = list(self._watches.values())
        return tuple(sorted((watch.view for watch in watches), key=lambda view: view.name))

    def _named_with(self, name: str) -> tuple[TargetView, ...]:
        """The last word on the other targets of the same ``dns+`` name, the same file, or the configuration."""
        source = self._sources.get(name, "")
        return tuple(view for view in self.views() if view.name != name and self._sources.get(view.name, "") == source)

    def healthy(self) -> bool:
        """Whether polls are still being made."""
        patience = _MISSED_POLLS * self._settings.poll.interval + self._settings.poll.deadline
        return self._schedule.running and (not self._watches or self._clock.monotonic() - self._last_tick < patience)

    def ready(self) -> bool:
        """Whether it is known what to watch, and every target was polled once."""
        return self._discovered and all(view.at is not None for view in self.views())

    def _discovery_of(self, settings: Settings) -> Discovery:
        """What finds the targets of this shard."""
        shard = parse_shard(settings.shard)
        self._telemetry.sharded(*shard)
        return Discovery(settings.targets, settings.discovery, shard=shard)

    def _discover(self) -> None:
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

    def _follow(self, targets: Sequence[TargetSettings]) -> None:
        """Add watches for the targets that came, and end those of the targets that left."""
        wanted = {target.name: target for target in targets}
        for name in [one for one, watch in self._watches.items() if one not in wanted or wanted[one].url != watch.target.url]:
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
            publish=self._publish,
            others=partial(self._named_with, target.name),
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
        self._history.forget(name)
        self._push.forget(name)
        _log.info("target.removed", target=name)

    def _publish(self, published: TargetWatch, view: TargetView) -> None:
        """Take in the view of a poll that ended."""
        self._last_tick = view.at if view.at is not None else self._last_tick
        with self._lock:  # held to the end: what `_remove` forgets must not be recorded afterwards
            if self._watches.get(view.name) is not published:
                return  # it was removed or replaced while this poll was under way
            self._history.record(view)
            self._push.publish(view)

    def _overrun(self, name: str) -> None:
        if name != _DISCOVERY:
            self._telemetry.tick_overrun(name)
