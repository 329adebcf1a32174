"""``EngineStalled``: a vLLM engine has work and no token comes out."""

from __future__ import annotations

from typing import Final

from kvwatch.alerts.definition import EngineAlert, Facts, PrometheusRule
from kvwatch.alerts.promql import RUNNING, WAITING, number
from kvwatch.alerts.wording import evidence_of, load_of, sentence
from kvwatch.model import Cause, Severity, State

_FIRST: Final = (
    "take the replica out of the load balancer, keep its log, restart it if still no token comes out; /health may say 200 meanwhile"
)
_FIRST_ELSEWHERE: Final = (
    "take the replica out of the load balancer and see whether the prefill server, the KV store or the source of LoRA adapters answers: "
    "a restart of this one throws away what waits and does not bring them back"
)


def condition(facts: Facts) -> bool | None:
    """The cause of that name; the classifier's own patience comes before."""
    return None if facts.verdict.state is State.UNKNOWN else facts.verdict.cause is Cause.STALLED


def seconds_before(facts: Facts) -> float:
    """How long the engine had been silent for longer than the patience with it: counters that stood still across lost polls prove it."""
    silent = None if facts.signals is None else facts.signals.seconds_without_life
    return 0.0 if silent is None else max(0.0, silent - facts.policy.thresholds.stall)


def describe(facts: Facts) -> str:
    """The silence, and how to get the users out of it."""
    for_others = facts.signals is not None and facts.signals.waits_for_others
    return sentence(facts.verdict, f"{evidence_of(facts.verdict)}{load_of(facts.signals)}", _FIRST_ELSEWHERE if for_others else _FIRST)


ALERT: Final = EngineAlert(
    name="EngineStalled",
    severity=Severity.CRITICAL,
    # A hung engine does not recover by itself. Longer: fewer pages while the first requests after a start compile kernels.
    for_seconds=45.0,
    summary="A vLLM engine has work and no token comes out.",
    fires_when="an engine is stalled for 45 seconds: at most 90 after its last token, whatever its clients do",
    hold_seconds=0.0,  # the first token is its end
    condition=condition,
    describe=describe,
    seconds_before=seconds_before,
    rule=PrometheusRule(
        comment="A hung engine does not recover by itself; the first requests after a start may compile kernels for most of a minute.\n"
        "kvwatch does the waiting, 45 s: counters that stood still across lost polls are time waited too.",
        waited=True,
        description=(
            "it has work and no token comes out"
            + number("; no progress for {}", "kvwatch_seconds_without_progress", "humanizeDuration")
            + f"{RUNNING}{WAITING}."
        ),
        first=(
            "take the replica out of the load balancer, keep its log, restart it if still no token comes out;\n"
            "/health may say 200 meanwhile."
        ),
    ),
)
