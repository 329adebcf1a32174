"""What kvwatch measures of itself: every metric of its own activity, in one place and on a registry of its own.

Numbers derived from targets are not here: `kvwatch.exporter.metrics.collector` builds those anew at each collection.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, PlatformCollector, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvwatch import __version__
from kvwatch.exporter.metrics.catalogue import label_value
from kvwatch.model import FailureReason


class _Polls:
    """Counts of one target's polls. The library's own counters would cost a fleet 9 KiB a target, most of it for zeros."""

    __slots__ = ("broken", "dropped", "ended", "failed", "left_out")

    def __init__(self) -> None:
        self.broken = 0
        self.ended = 0
        self.left_out = 0
        self.dropped = 0
        self.failed: dict[FailureReason, int] = {}


class Telemetry(Collector):
    """kvwatch's own metrics. All methods may be called from any thread.

    ``registry`` is the one `/metrics` serves; other collectors register themselves on it.
    """

    def __init__(self, log_lines_dropped: Callable[[], int] = lambda: 0) -> None:
        self._log_lines_dropped = log_lines_dropped
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
        self._reload_ok = Gauge(
            "kvwatch_config_last_reload_successful",
            "Whether the configuration could be used when it was read last.",
            registry=self.registry,
        )
        self._reload_at = Gauge(
            "kvwatch_config_last_reload_success_timestamp_seconds", "When a configuration was taken over last.", registry=self.registry
        )
        self._shards = Gauge(
            "kvwatch_shards",
            "How many kvwatches share the targets; the label is which of them this one is.",
            ["shard"],
            registry=self.registry,
        )
        self._polls: dict[str, _Polls] = {}
        self._lock = threading.Lock()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The polls of every target, every reason of failure among them, so that ``increase()`` sees the first one."""
        ended = CounterMetricFamily("kvwatch_target_scrapes", "Polls of the target that ended, well or badly.", labels=["target"])
        failed = CounterMetricFamily(
            "kvwatch_target_scrape_failures", "Polls of the target that gave no vLLM metrics, by reason.", labels=["target", "reason"]
        )
        left_out = CounterMetricFamily("kvwatch_tick_overruns", "Polls left out because the one before had not ended.", labels=["target"])
        broken = CounterMetricFamily(
            "kvwatch_engine_faults", "Verdicts, advice and alerts of an engine that failed by an error of kvwatch's own.", labels=["target"]
        )
        dropped = CounterMetricFamily(
            "kvwatch_target_engines_dropped", "Engines left out of polls because the target has too many.", labels=["target"]
        )
        with self._lock:
            for target, polls in self._polls.items():
                dropped.add_metric([target], polls.dropped)
                broken.add_metric([target], polls.broken)
                ended.add_metric([target], polls.ended)
                left_out.add_metric([target], polls.left_out)
                for reason in FailureReason:
                    failed.add_metric([target, reason.value], polls.failed.get(reason, 0))
        yield from (ended, failed, left_out, broken, dropped)
        yield CounterMetricFamily(
            "kvwatch_log_lines_dropped", "Lines of the log that could not be written.", value=self._log_lines_dropped()
        )

    def config_read(self, unix: float, *, good: bool) -> None:
        """The configuration was read, at the start or again."""
        self._reload_ok.set(good)
        if good:
            self._reload_at.set(unix)

    def sharded(self, index: int, total: int) -> None:
        """Say which shard of how many it is: *index* from 0, of *total*."""
        self._shards.clear()
        self._shards.labels(str(index)).set(total)

    def target_added(self, target: str) -> None:
        """Begin to count for a target."""
        with self._lock:
            self._polls.setdefault(label_value(target), _Polls())

    def target_removed(self, target: str) -> None:
        """Drop every series of a target that has vanished."""
        with self._lock:
            self._polls.pop(label_value(target), None)

    def scrape_ended(self, target: str, failure: FailureReason | None) -> None:
        """Count a poll that ended. One that ends after its target was removed is not counted and brings no series back."""
        with self._lock:
            polls = self._polls.get(label_value(target))
            if polls is not None:
                polls.ended += 1
                if failure is not None:
                    polls.failed[failure] = polls.failed.get(failure, 0) + 1

    def engine_broke(self, target: str) -> None:
        """Count something of an engine that failed by an error of kvwatch's own."""
        with self._lock:
            polls = self._polls.get(label_value(target))
            if polls is not None:
                polls.broken += 1

    def engines_dropped(self, target: str, engines: int) -> None:
        """Count engines that were left out of a poll."""
        with self._lock:
            polls = self._polls.get(label_value(target))
            if polls is not None:
                polls.dropped += engines

    def tick_overrun(self, target: str) -> None:
        """Count a poll that was left out because the one before had not ended."""
        with self._lock:
            polls = self._polls.get(label_value(target))
            if polls is not None:
                polls.left_out += 1

    def alertmanager_added(self, url: str) -> None:
        """Create the series of an Alertmanager at 0."""
        self._notifications.labels(url)
        self._notification_failures.labels(url)

    def notification_ended(self, url: str, *, failed: bool) -> None:
        """Count a post of alerts."""
        self._notifications.labels(url).inc()
        if failed:
            self._notification_failures.labels(url).inc()
