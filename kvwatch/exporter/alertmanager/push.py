"""Direct push to Alertmanager, for hosts without Prometheus. Where there is a Prometheus, its rules are the better road.

One road or the other: Prometheus' alerts carry its own labels (job, instance), so an Alertmanager sent by both pages twice.

A poll only leaves its view here and goes on; every Alertmanager has a thread of its own, so one that hangs delays neither the
polls nor the other replicas.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from kvwatch.clock import Clock
from kvwatch.config.settings import AlertmanagerSettings
from kvwatch.config.web import WebSettings
from kvwatch.exporter.alertmanager.client import Outcome, Post, http_post
from kvwatch.exporter.alertmanager.notifications import AlertRecord, Delivery, Notification
from kvwatch.model import TargetView

_STOP_SECONDS: Final = 0.2
_BATCH: Final = 64
"""Alerts per POST, as Prometheus sends them."""

_log = structlog.get_logger(__name__)


class PushTelemetry(Protocol):
    """Where posts are counted."""

    def alertmanager_added(self, url: str) -> None:
        """An Alertmanager is known from now on."""
        ...

    def notification_ended(self, url: str, *, failed: bool) -> None:
        """A post of alerts has ended."""
        ...


def instance_of(web: WebSettings) -> str:
    """The ``host:port`` of this kvwatch, as others may know it."""
    return f"{socket.gethostname()}:{web.host_port[1]}"


def own_labels(settings: AlertmanagerSettings, instance: str) -> dict[str, str]:
    """What makes this kvwatch's alerts its own: sidecars all call their target 127.0.0.1, so without them a fleet's alerts would be one."""
    return {"instance": instance, **settings.labels}


def page_url_of(settings: AlertmanagerSettings, instance: str, scheme: str) -> str:
    """Where people reach the page, without a final slash; *scheme* is what it speaks, http or https."""
    return (settings.external_url or f"{scheme}://{instance}").rstrip("/")


class AlertmanagerPush:
    """Tells every configured Alertmanager what fires and what has ended; ``post_to`` makes the transport of one URL.

    *instance* is the ``host:port`` of this kvwatch: a label of its alerts, as Prometheus' would be, unless the settings give another.
    *scheme* is asked what the page there speaks whenever a link to it is sent.
    """

    def __init__(
        self,
        settings: AlertmanagerSettings,
        clock: Clock,
        telemetry: PushTelemetry,
        *,
        poll_interval: float,
        instance: str,
        scheme: Callable[[], str] = lambda: "http",
        post_to: Callable[[str, AlertmanagerSettings, Clock], Post] = http_post,
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._record = AlertRecord(own_labels(settings, instance))
        self._stopping = threading.Event()
        resend = max(settings.resend, poll_interval)
        self.replicas = tuple(
            Replica(
                url,
                post_to(url, settings, clock),
                self._notifications,
                clock,
                telemetry,
                resend=resend,
                page_url=lambda: page_url_of(settings, instance, scheme()),
            )
            for url in settings.urls
        )
        self._threads = tuple(
            threading.Thread(target=replica.run, args=(self._stopping,), name="alertmanager", daemon=True) for replica in self.replicas
        )

    def start(self) -> None:
        """Begin to send."""
        for thread in self._threads:
            thread.start()

    def publish(self, view: TargetView) -> None:
        """Take in the latest word on a target; to be called after each of its polls, from any thread. Never blocks on a network."""
        if not self.replicas:
            return
        with self._lock:
            self._record.update(view, monotonic=self._clock.monotonic(), unix=self._clock.unix())
        self._wake()

    def forget(self, target: str) -> None:
        """A target is watched no more; what fired for it is resolved."""
        if not self.replicas:
            return
        with self._lock:
            self._record.forget(target, monotonic=self._clock.monotonic(), unix=self._clock.unix())
        self._wake()

    def stop(self) -> None:
        """Stop sending, and resolve nothing: the end of kvwatch is not the end of a storm. A post that hangs is waited for only shortly."""
        self._stopping.set()
        self._wake()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=_STOP_SECONDS / len(self._threads))

    def _wake(self) -> None:
        for replica in self.replicas:
            replica.wake.set()

    def _notifications(self) -> tuple[Notification, ...]:
        with self._lock:
            return self._record.notifications(self._clock.monotonic())


class Replica:
    """One Alertmanager and what it has been sent."""

    def __init__(
        self,
        url: str,
        post: Post,
        notifications: Callable[[], Sequence[Notification]],
        clock: Clock,
        telemetry: PushTelemetry,
        *,
        resend: float,
        page_url: Callable[[], str],
    ) -> None:
        self.wake = threading.Event()
        self._url = url
        self._post = post
        self._notifications = notifications
        self._clock = clock
        self._telemetry = telemetry
        self._resend = resend
        self._page_url = page_url
        self._delivery = Delivery(resend)
        self._reached = True
        telemetry.alertmanager_added(url)

    def run(self, stopping: threading.Event) -> None:
        """Send whatever is due, then sleep until news or the next resend; until ``stopping``."""
        while not stopping.is_set():
            self.wake.clear()
            try:
                wait = self.step()
            except Exception:  # noqa: BLE001 - an error of ours must not end the thread and with it every later page
                _log.exception("alertmanager.step_failed", url=self._url)
                wait = self._resend
            self.wake.wait(wait)

    def step(self) -> float | None:
        """Send whatever is due now; returns the seconds after which to look again without news."""
        known = self._notifications()
        due = self._delivery.due(known, self._clock.monotonic())
        for start in range(0, len(due), _BATCH):
            if not self._send(due[start : start + _BATCH], known):
                break
        return self._delivery.wait(known, self._clock.monotonic())

    def _send(self, batch: Sequence[Notification], known: Sequence[Notification]) -> bool:
        unix, page_url = self._clock.unix(), self._page_url()
        body = json.dumps([one.as_json(unix=unix, resend=self._resend, page_url=page_url) for one in batch])
        outcome, detail = self._post(body.encode())
        self._telemetry.notification_ended(self._url, failed=outcome is not Outcome.ACCEPTED)
        now = self._clock.monotonic()
        if outcome is Outcome.FAILED:
            self._delivery.failed(now)
            if self._reached:
                _log.warning("alertmanager.not_reached", url=self._url, detail=detail)
            self._reached = False
            return False
        self._delivery.delivered(batch, known, now)
        if outcome is Outcome.REFUSED:
            _log.warning("alertmanager.alerts_refused", url=self._url, detail=detail)
        elif not self._reached:
            _log.info("alertmanager.reached_again", url=self._url)
        self._reached = True
        return True
