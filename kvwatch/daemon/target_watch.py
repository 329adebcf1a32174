"""One target's watch: a tick fetches, judges, publishes and tells. Nothing a target does may end it."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from kvwatch.assess import Judge, Judgement
from kvwatch.clock import Clock
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.config.settings import TargetSettings
from kvwatch.daemon.watch_log import announce
from kvwatch.errors import ScrapeError
from kvwatch.exporter.metrics.telemetry import Telemetry
from kvwatch.model import MOST_ENGINES, Assessment, Cause, FailureReason, Others, Scrape, ScrapeFailure, State, TargetView, Verdict
from kvwatch.runs.run import Run

_log = structlog.get_logger(__name__)

ReadTarget = Callable[[], Scrape]
"""Fetch and parse a target once; raises `ScrapeError`."""


class TargetWatch:
    """Watches one target every *interval* seconds. `tick` is called by one thread at a time; `view` may be read from any.

    *others* gives the last word on the targets that were named together with this one.
    """

    def __init__(
        self,
        target: TargetSettings,
        interval: float,
        *,
        read: ReadTarget,
        judge: Judge,
        clock: Clock,
        telemetry: Telemetry,
        publish: Callable[[TargetWatch, TargetView], None],
        others: Others,
    ) -> None:
        self.target = target
        self._interval = interval
        self._read = read
        self._judge = judge
        self._clock = clock
        self._telemetry = telemetry
        self._publish = publish
        self._others = others
        self.view = TargetView(target.name, target.url, interval, at=None, labels=target.labels)
        self._dropped = 0
        self._change: Callable[[], None] | None = None

    def reconfigure(
        self, target: TargetSettings, read: ReadTarget, policy: Policy, known: KnownConfig, baseline: Run | None = None
    ) -> None:
        """From the next tick on watch *target*, the same URL under the same name, by other settings; histories are kept."""
        self.target = target

        def change() -> None:
            self._read = read
            self._judge.reconfigure(policy, known, baseline)

        self._change = change  # made by the thread that ticks: a judge is nobody else's meanwhile

    def tick(self) -> None:
        """Poll once, and publish what is to be said of the target now."""
        change, self._change = self._change, None
        if change is not None:
            change()
        began = self._clock.monotonic()
        found, judgement = self._look()
        ended = self._clock.monotonic()
        failure = found if isinstance(found, ScrapeFailure) else None
        for fault in judgement.faults:
            _log.error("engine.broke", target=self.target.name, exc_info=fault)
            self._telemetry.engine_broke(self.target.name)
        before = self.view
        self.view = TargetView(
            name=before.name,
            url=before.url,
            interval=self._interval,
            at=ended,
            last_success_at=before.last_success_at if failure else ended,
            last_success_unix=before.last_success_unix if failure else self._clock.unix(),
            scrape_seconds=ended - began,
            failure=failure,
            assessments=judgement.assessments,
            alerts=judgement.alerts,
            conditions=judgement.conditions,
            sources=found.sources if isinstance(found, Scrape) else before.sources,
            labels=self.target.labels,
        )
        self._telemetry.scrape_ended(before.name, failure.reason if failure else None)
        self._note_dropped(found.engines_dropped if isinstance(found, Scrape) else 0)
        self._publish(self, self.view)
        announce(before, self.view)

    def _note_dropped(self, engines: int) -> None:
        """Count the engines that were left out of a poll, and say so when that begins."""
        self._telemetry.engines_dropped(self.target.name, engines)
        if engines and not self._dropped:
            detail = f"a target may have {MOST_ENGINES} engines with names of up to 1024 characters; the others are not judged"
            _log.warning("target.engines_dropped", target=self.target.name, engines=engines, detail=detail)
        self._dropped = engines

    def _look(self) -> tuple[Scrape | ScrapeFailure, Judgement]:
        try:
            scrape = self._read()
            return scrape, self._judge.scraped(scrape, self._others)
        except ScrapeError as error:
            failure = ScrapeFailure(self._clock.monotonic(), error.reason, error.detail)
        except Exception as error:  # noqa: BLE001 - an error of ours must not end the watch: it is logged, counted and shown
            _log.exception("scrape.broke", target=self.target.name)
            failure = ScrapeFailure(self._clock.monotonic(), FailureReason.INTERNAL, f"kvwatch failed: {type(error).__name__}")
        return failure, self._judge_failure(failure)

    def _judge_failure(self, failure: ScrapeFailure) -> Judgement:
        try:
            return self._judge.failed(failure, self._others)
        except Exception:  # noqa: BLE001 - see above; what can still be said is that nothing is known
            _log.exception("judge.broke", target=self.target.name)
            verdict = Verdict(None, State.UNKNOWN, Cause.UNREACHABLE, (f"{failure.reason}: {failure.detail}",), failure.at)
            return Judgement((Assessment(verdict, None),), ())
