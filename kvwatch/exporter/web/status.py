"""``/api/v1/status``: what kvwatch says, as JSON for scripts.

The shape is stable within ``version``; keys may be added, never changed or removed. ``null`` means nobody knows; numbers are
finite; times are RFC 3339 in UTC; durations are seconds. A target whose polls have stopped is ``stale`` and its engines are
``unknown``, as on `/metrics`::

    {
      "version": 1,
      "kvwatch": "0.1.0",                      kvwatch's own version
      "generated": "2026-01-31T12:00:00.000Z",
      "targets": [{
        "name": "http://127.0.0.1:8000/metrics",
        "url": "http://127.0.0.1:8000/metrics",
        "labels": {"namespace": "prod", "pod": "vllm-0"},
        "up": true,                            the last poll succeeded and is fresh
        "stale": false,
        "last_success": "2026-01-31T11:59:58.000Z" | null,
        "scrape_seconds": 0.004 | null,
        "failure": {"reason": "timeout", "detail": "..."} | null,
        "alerts": [ALERT],                     about the target itself
        "sources": {"kv_usage": "vllm:kv_cache_usage_perc"},
        "engines": [{
          "model_name": "demo-8b" | null,      null while no engine of the target is known
          "engine": "0" | null,
          "state": "kv_bound",
          "cause": "preempting",
          "evidence": ["..."],
          "since": "2026-01-31T11:58:00.000Z",
          "transitions": 3,
          "state_seconds": {"healthy": 512.0, ...},
          "signals": {"running": 12, "fast": {"seconds": 30, "preemption_ratio": 0.4, ...}, ...} | null,
          "alerts": [ALERT],
          "advice": [{"lever", "current", "proposed", "reason", "effect", "caution", "gain"}],
          "baseline": {"lines": [{"name", "change", "worse", "words"}], "refusals": ["why it was not compared"]} | null
        }]
      }]
    }

    ALERT = {"name", "severity", "since", "summary", "description"}

The keys of ``signals``, and of the windows ``recent``, ``fast`` and ``slow`` in it, are the fields of `kvwatch.model.Signals`
and `kvwatch.model.Window` (without ``at``).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

from kvwatch import __version__
from kvwatch.clock import Clock
from kvwatch.exporter.freshness import as_of, is_stale, is_up
from kvwatch.model import Alert, Assessment, TargetView
from kvwatch.text import rfc3339

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_log = structlog.get_logger(__name__)

VERSION: Final = 1


class Instant:
    """One instant on both clocks, so that monotonic times can be told to people."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic()
        self.unix = clock.unix()

    def rfc3339(self, at: float) -> str:
        """The wall-clock time of monotonic time ``at``."""
        return rfc3339(self.unix - (self.monotonic - at))


def status_document(views: Sequence[TargetView], clock: Clock) -> dict[str, object]:
    """The document described above."""
    moment = Instant(clock)
    return {
        "version": VERSION,
        "kvwatch": __version__,
        "generated": rfc3339(moment.unix),
        "targets": [target for view in views if (target := _whole(view, moment)) is not None],
    }


def _whole(view: TargetView, moment: Instant) -> dict[str, object] | None:
    """A target as JSON takes it; ``None`` (and a line in the log) for one whose view cannot be told: the others must be."""
    try:
        target = _target(view, moment)
        json.dumps(target, allow_nan=False)
    except Exception:  # noqa: BLE001 - see above
        _log.exception("status.target_left_out", target=view.name)
        return None
    return target


def status_json(views: Sequence[TargetView], clock: Clock) -> bytes:
    """The document as UTF-8 JSON that every parser takes: no NaN, no infinity."""
    return json.dumps(status_document(views, clock), allow_nan=False, separators=(",", ":")).encode("ascii")


def _target(view: TargetView, moment: Instant) -> dict[str, object]:
    shown = as_of(view, moment.monotonic)
    failure = view.failure
    return {
        "name": view.name,
        "url": view.url,
        "labels": dict(view.labels),
        "up": is_up(view, moment.monotonic),
        "stale": is_stale(view, moment.monotonic),
        "last_success": None if view.last_success_unix is None else rfc3339(view.last_success_unix),
        "scrape_seconds": view.scrape_seconds,
        "failure": None if failure is None else {"reason": failure.reason.value, "detail": failure.detail},
        "alerts": [_alert(alert, moment) for alert in shown.alerts],
        "sources": dict(shown.sources),
        "engines": [_engine(assessment, moment) for assessment in shown.assessments],
    }


def _engine(assessment: Assessment, moment: Instant) -> dict[str, object]:
    verdict = assessment.verdict
    return {
        "model_name": None if verdict.engine is None else verdict.engine.model_name,
        "engine": None if verdict.engine is None else verdict.engine.engine,
        "state": verdict.state.value,
        "cause": verdict.cause.value,
        "evidence": list(verdict.evidence),
        "since": moment.rfc3339(verdict.since),
        "transitions": assessment.transitions,
        "state_seconds": {state.value: seconds for state, seconds in assessment.state_seconds.items()},
        "signals": None if assessment.signals is None else _numbers(assessment.signals),
        "alerts": [_alert(alert, moment) for alert in assessment.alerts],
        "advice": [dataclasses.asdict(change) for change in assessment.advice],
        "baseline": None if assessment.baseline is None else dataclasses.asdict(assessment.baseline),
    }


def _alert(alert: Alert, moment: Instant) -> dict[str, object]:
    return {
        "name": alert.name,
        "severity": alert.severity.value,
        "since": moment.rfc3339(alert.since),
        "summary": alert.summary,
        "description": alert.description,
    }


def _numbers(record: DataclassInstance) -> dict[str, object]:
    """The fields of signals or of a part of them; ``at`` is a time on our own clock and says nothing outside."""
    return {field.name: _number(getattr(record, field.name)) for field in dataclasses.fields(record) if field.name != "at"}


def _number(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _numbers(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
