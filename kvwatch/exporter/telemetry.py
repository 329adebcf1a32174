"""What kvwatch measures of itself: every metric of its own activity, in one place and on a registry of its own.

Numbers derived from targets are not here: `kvwatch.exporter.metrics` builds those anew at each collection.
"""

from __future__ import annotations

import platform
import threading

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, PlatformCollector, ProcessCollector, disable_created_metrics

from kvwatch import __version__
from kvwatch.exporter.catalogue import label_value
from kvwatch.model import FailureReason


class Telemetry:
    """kvwatch's own metrics. All methods may be called from any thread.

    ``registry`` is the one `/metrics` serves; other collectors register themselves on it.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library forgot the annotation
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        build_info = Gauge(
            "kvwatch_build_info",
            "Version of kvwatch and of the Python it runs on; always 1.",
            ["version", "python_version"],
            registry=self.registry,
        )
        build_info.labels(__version__, platform.python_version()).set(1)
        self._scrapes = Counter(
            "kvwatch_target_scrapes", "Polls of the target that ended, well or badly.", ["target"], registry=self.registry
        )
        self._failures = Counter(
            "kvwatch_target_scrape_failures",
            "Polls of the target that gave no vLLM metrics, by reason.",
            ["target", "reason"],
            registry=self.registry,
        )
        self._overruns = Counter(
            "kvwatch_tick_overruns", "Polls left out because the one before had not ended.", ["target"], registry=self.registry
        )
        self._notifications = Counter(
            "kvwatch_alertmanager_notifications",
            "Posts of alerts to an Alertmanager, well or badly ended.",
            ["alertmanager"],
            registry=self.registry,
        )
        self._notification_failures = Counter(
            "kvwatch_alertmanager_notifications_failed",
            "Posts of alerts an Alertmanager did not take.",
            ["alertmanager"],
            registry=self.registry,
        )
        self._targets: set[str] = set()
        self._lock = threading.Lock()

    def target_added(self, target: str) -> None:
        """Create every series of a target at 0, so that ``increase()`` sees the first failure."""
        target = label_value(target)
        with self._lock:
            self._targets.add(target)
            self._scrapes.labels(target)
            self._overruns.labels(target)
            for reason in FailureReason:
                self._failures.labels(target, reason.value)

    def target_removed(self, target: str) -> None:
        """Drop every series of a target that has vanished."""
        target = label_value(target)
        with self._lock:
            if target not in self._targets:
                return
            self._targets.remove(target)
            self._scrapes.remove(target)
            self._overruns.remove(target)
            for reason in FailureReason:
                self._failures.remove(target, reason.value)

    def scrape_ended(self, target: str, failure: FailureReason | None) -> None:
        """Count a poll that ended. One that ends after its target was removed is not counted and brings no series back."""
        target = label_value(target)
        with self._lock:
            if target in self._targets:
                self._scrapes.labels(target).inc()
                if failure is not None:
                    self._failures.labels(target, failure.value).inc()

    def tick_overrun(self, target: str) -> None:
        """Count a poll that was left out because the one before had not ended."""
        target = label_value(target)
        with self._lock:
            if target in self._targets:
                self._overruns.labels(target).inc()

    def alertmanager_added(self, url: str) -> None:
        """Create the series of an Alertmanager at 0."""
        self._notifications.labels(url)
        self._notification_failures.labels(url)

    def notification_ended(self, url: str, *, failed: bool) -> None:
        """Count a post of alerts."""
        self._notifications.labels(url).inc()
        if failed:
            self._notification_failures.labels(url).inc()
