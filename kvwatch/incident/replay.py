"""The same classifier over the past: a recording goes in, one row per scrape and engine comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvwatch.assess import Judge, Judgement
from kvwatch.errors import ScrapeError
from kvwatch.incident.recording import Entry
from kvwatch.model import Alert, Assessment, FailureReason, ScrapeFailure
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.vllm import parse_scrape


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """What kvwatch said of one engine at one recorded scrape."""

    t: float
    target: str
    assessment: Assessment
    target_alerts: tuple[Alert, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The line of ``replay --format jsonl``."""
        verdict, signals = self.assessment.verdict, self.assessment.signals
        return {
            "t": self.t,
            "target": self.target,
            "model_name": verdict.engine.model_name if verdict.engine else None,
            "engine": verdict.engine.engine if verdict.engine else None,
            "state": verdict.state,
            "cause": verdict.cause,
            "preemption_ratio": {
                "fast": signals.fast.preemption_ratio if signals else None,
                "slow": signals.slow.preemption_ratio if signals else None,
            },
            "kv_usage": signals.kv_usage if signals else None,
            "running": signals.running if signals else None,
            "waiting": signals.waiting if signals else None,
            "alerts": [alert.name for alert in (*self.assessment.alerts, *self.target_alerts)],
        }


def rows_of(entry: Entry, target: str, judge: Judge, memory: LabelMemory | None = None) -> Iterator[ReplayRow]:
    """What *judge* says after one more recorded scrape; *memory* is of the same target."""
    judgement = _judge(entry, judge, memory)
    for assessment in judgement.assessments:
        yield ReplayRow(entry.t, target, assessment, judgement.alerts)


def _judge(entry: Entry, judge: Judge, memory: LabelMemory | None) -> Judgement:
    if entry.body is None:
        return judge.failed(_failure(entry))
    try:
        return judge.scraped(parse_scrape(entry.body, entry.t, entry.t, memory))
    except ScrapeError as error:
        return judge.failed(ScrapeFailure(entry.t, error.reason, error.detail))


def _failure(entry: Entry) -> ScrapeFailure:
    reason, _, detail = (entry.error or "").partition(":")
    try:
        return ScrapeFailure(entry.t, FailureReason(reason.strip()), detail.strip() or "as recorded")
    except ValueError:
        return ScrapeFailure(entry.t, FailureReason.INTERNAL, entry.error or "no reason was recorded")
