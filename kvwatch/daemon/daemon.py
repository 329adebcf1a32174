"""The daemon: wires the targets' watches, the HTTP front, which only reads their last views, and the push; stops within a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from kvwatch import __version__
from kvwatch.clock import Clock
from kvwatch.config.settings import Settings, TargetSettings
from kvwatch.daemon.reloading import differing
from kvwatch.daemon.targets import WatchedTargets
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

_log = structlog.get_logger(__name__)


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
        self._clock = clock
        self._reload_over_http = reload if settings.web.enable_lifecycle else None
        self._telemetry = Telemetry(log_lines_dropped)
        self._push = AlertmanagerPush(
            settings.alertmanager,
            clock,
            self._telemetry,
            poll_interval=settings.poll.interval,
            instance=instance_of(settings.web),
            scheme=lambda: "http" if self._server is None else self._server.scheme,
        )
        self._history = ChartHistory()
        self._targets = WatchedTargets(settings, clock, self._telemetry, publish=self._publish, forget=self._forget, read=read, pace=pace)
        self._server: Server | None = None
        self._collector = ViewCollector(self.views, clock, fast_window=settings.window.fast, slow_window=settings.window.slow)
        self._telemetry.registry.register(self._collector)
        self._page = StatusPage(self.views, clock, self._history, storm_ratio=settings.thresholds.storm_ratio)
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
        self._targets.start()
        _log.info(
            "kvwatch.started",
            version=__version__,
            url=self._server.url,
            shard=self._settings.shard,
            targets=len(self.views()),
        )

    def stop(self) -> None:
        """Stop polling and serving; calling it again changes nothing."""
        self._targets.stop()
        self._push.stop()
        if self._server is not None:
            self._server.close()
            self._server = None

    def reload(self, settings: Settings) -> tuple[str, ...]:
        """Watch and judge by other settings, keeping every history; returns the settings that only a restart changes.

        Certificates and the file of the web configuration need no reload: they are read again when they change.
        """
        needs_restart = differing(self._settings, settings)
        fixed = {"web": self._settings.web, "alertmanager": self._settings.alertmanager, "log": self._settings.log}
        poll = settings.poll.model_copy(update={"interval": self._settings.poll.interval})
        merged = settings.model_copy(update={**fixed, "poll": poll})
        self._targets.reconfigure(merged)
        self._settings = merged
        self._page.storm_ratio = merged.thresholds.storm_ratio
        self._collector.name_windows(merged.window.fast, merged.window.slow)
        self._telemetry.config_read(self._clock.unix(), good=True)
        return needs_restart

    def reload_failed(self) -> None:
        """The configuration could not be read again; everything goes on as before."""
        self._telemetry.config_read(self._clock.unix(), good=False)

    def views(self) -> tuple[TargetView, ...]:
        """The last word on every target, by name; never waits for one."""
        return self._targets.views()

    def healthy(self) -> bool:
        """Whether polls are still being made."""
        return self._targets.polling()

    def ready(self) -> bool:
        """Whether it is known what to watch, and every target was polled once."""
        return self._targets.all_polled()

    def _publish(self, view: TargetView) -> None:
        self._history.record(view)
        self._push.publish(view)

    def _forget(self, name: str) -> None:
        self._history.forget(name)
        self._push.forget(name)
