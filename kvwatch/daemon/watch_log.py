"""The log of a watch: one event per change between two views of a target, the steady state at debug."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from kvwatch.model import Alert, Assessment, Change, EngineId, Severity, State, TargetView

_log = structlog.get_logger(__name__)


def announce(before: TargetView, after: TargetView) -> None:
    """Log what changed from one view to the next."""
    _log.debug("target.polled", target=after.name, seconds=round(after.scrape_seconds or 0.0, 4), engines=len(after.assessments))
    _announce_failure(before, after)
    known = {assessment.verdict.engine: assessment for assessment in before.assessments}
    for assessment in after.assessments:
        if assessment.verdict.engine is not None:
            _announce_state(after.name, known.get(assessment.verdict.engine), assessment)
    _announce_alerts(after.name, _alerts(before), _alerts(after))


def _announce_failure(before: TargetView, after: TargetView) -> None:
    if after.failure is not None:
        if before.failure is None or before.failure.reason is not after.failure.reason:
            _log.warning("target.failed", target=after.name, reason=str(after.failure.reason), detail=after.failure.detail)
    elif before.failure is not None:
        _log.info("target.recovered", target=after.name)


def _announce_state(target: str, before: Assessment | None, after: Assessment) -> None:
    verdict, was = after.verdict, before.verdict if before else None
    if was is not None and was.state is verdict.state:
        if was.cause is not verdict.cause:
            _log.debug(
                "engine.cause_changed", target=target, **_engine(verdict.engine), cause=str(verdict.cause), evidence=verdict.evidence
            )
        return
    level = _log.warning if verdict.state in (State.KV_BOUND, State.COMPUTE_BOUND) else _log.info
    first = after.advice[0] if after.advice else None
    level(
        "engine.state_changed",
        target=target,
        **_engine(verdict.engine),
        state=str(verdict.state),
        cause=str(verdict.cause),
        was=str(was.state) if was else None,
        evidence=verdict.evidence,
        **({"advice": _in_one_line(first)} if first else {}),
    )


def _announce_alerts(
    target: str, before: dict[tuple[EngineId | None, str], Alert], after: dict[tuple[EngineId | None, str], Alert]
) -> None:
    for key, alert in after.items():
        if key in before:
            continue
        level = _log.error if alert.severity is Severity.CRITICAL else _log.warning
        level(
            "alert.fired", target=target, **_engine(key[0]), alert=alert.name, severity=str(alert.severity), description=alert.description
        )
    for engine, name in before:
        if (engine, name) not in after:
            _log.info("alert.resolved", target=target, **_engine(engine), alert=name)


def _in_one_line(change: Change) -> str:
    values = "" if change.proposed is None else f" {change.current or ''} -> {change.proposed}".replace("  ", " ")
    return f"{change.lever}{values}: {change.reason}"


def _alerts(view: TargetView) -> dict[tuple[EngineId | None, str], Alert]:
    def keyed(engine: EngineId | None, alerts: Iterable[Alert]) -> dict[tuple[EngineId | None, str], Alert]:
        return {(engine, alert.name): alert for alert in alerts}

    found = keyed(None, view.alerts)
    for assessment in view.assessments:
        found |= keyed(assessment.verdict.engine, assessment.alerts)
    return found


def _engine(engine: EngineId | None) -> dict[str, str]:
    return {} if engine is None else {"model_name": engine.model_name, "engine": engine.engine}


def announce_discovery(before: Sequence[str], now: Sequence[str]) -> None:
    """Say once what cannot be followed, and when all can again."""
    for error in now:
        if error not in before:
            _log.warning("discovery.failed", detail=error)
    if before and not now:
        _log.info("discovery.recovered")
