"""``WatcherBlind``: kvwatch cannot say how an engine is doing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kvwatch.alerts.definition import EngineAlert, Facts, PrometheusRule
from kvwatch.alerts.promql import cause_among
from kvwatch.alerts.wording import evidence_of, sentence
from kvwatch.model import CAUSES, Cause, Severity, State

_FIRST: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.WARMING_UP: "see whether vLLM restarts in a loop",
        Cause.STALE: "see in vLLM's log whether this engine's process has died: its siblings answer, and it may still be sent work",
        Cause.NO_VLLM_METRICS: "check that the URL is vLLM's /metrics and not a proxy's or a router's",
        Cause.STATS_DISABLED: "start vLLM without --disable-log-stats",
        Cause.AMBIGUOUS: (
            "see whether several servers answer under this address; if it is one, compare its /metrics with the names in "
            "kvwatch_signal_source_info, for an upgrade of vLLM may have renamed some"
        ),
    }
)


def condition(facts: Facts) -> bool | None:
    """Unknown; but unreachable is a lost poll, and `TargetDown` when it lasts, and asleep is on purpose."""
    if facts.verdict.cause is Cause.UNREACHABLE:
        return None
    return facts.verdict.state is State.UNKNOWN and facts.verdict.cause is not Cause.ASLEEP


def describe(facts: Facts) -> str:
    """Why kvwatch cannot see; no other alert can fire meanwhile."""
    verdict = facts.verdict
    return sentence(verdict, f"{evidence_of(verdict)}, so no other alert can fire", _FIRST[verdict.cause])


ALERT: Final = EngineAlert(
    name="WatcherBlind",
    severity=Severity.WARNING,
    for_seconds=300.0,  # warming up takes seconds; a restarted vLLM that nobody calls yet shows little for minutes
    summary="kvwatch cannot say how a vLLM engine is doing.",
    fires_when="the state of an engine is unknown for five minutes, as when one of several ranks is gone",
    condition=condition,
    describe=describe,
    rule=PrometheusRule(
        comment="Unreachable is a lost poll, and KVWatchTargetDown's when it lasts; asleep is on purpose.\n"
        "Warming up takes seconds; a restarted vLLM that nobody calls yet shows little for minutes.",
        description=(f"unknown for five minutes, cause\n{cause_among(*CAUSES[State.UNKNOWN])}, so no other alert can fire."),
        first="look up the cause in the runbook.",
    ),
)
