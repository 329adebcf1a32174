"""``LatencyObjectiveMissed``: a latency is above the objective that was set for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kvwatch.alerts.definition import EngineAlert, Facts, PrometheusRule
from kvwatch.alerts.promql import cause_among, number
from kvwatch.alerts.wording import load_of, sentence
from kvwatch.model import Cause, Severity

_P95: Final = 'quantile="0.95",'


def _latencies(facts: Facts) -> Iterator[tuple[str, float, float]]:
    """Name, 95th percentile over the slow window and objective, in seconds, of every latency that has both."""
    signals, objectives = facts.signals, facts.policy.objectives
    if signals is None:
        return
    for name, seen, objective in (
        ("time to first token", signals.time_to_first_token, objectives.time_to_first_token),
        ("inter-token latency", signals.inter_token_latency, objectives.inter_token_latency),
        ("end-to-end latency", signals.e2e_latency, objectives.e2e_request_latency),
    ):
        if seen is not None and objective is not None:
            yield name, seen.p95, objective


def condition(facts: Facts) -> bool | None:
    """Any latency above its objective."""
    judged = [p95 > objective for _, p95, objective in _latencies(facts)]
    return any(judged) if judged else None


def describe(facts: Facts) -> str:
    """Every latency beyond its objective."""
    missed = ", ".join(
        f"{name} {p95:.3g} s at the 95th percentile (objective {objective:g} s)"
        for name, p95, objective in _latencies(facts)
        if p95 > objective
    )
    return sentence(
        facts.verdict,
        f"{missed}{load_of(facts.signals)}",
        "follow the advice for its cause; if that is ok, look at prompt lengths and at the proxy",
    )


ALERT: Final = EngineAlert(
    name="LatencyObjectiveMissed",
    severity=Severity.WARNING,
    for_seconds=300.0,  # on top of the slow window: one bad burst is over by then
    summary="A latency objective of a vLLM engine is missed.",
    fires_when="a latency objective that was set is missed for five minutes",
    condition=condition,
    describe=describe,
    rule=PrometheusRule(
        comment="On top of the slow window: one bad burst is over by then. The objectives stand in kvwatch's configuration.",
        description=(
            "95th percentiles"
            + number(" time to first token {},", "kvwatch_time_to_first_token_seconds", "humanizeDuration", labels=_P95)
            + number(" inter-token latency {},", "kvwatch_inter_token_latency_seconds", "humanizeDuration", labels=_P95)
            + number(" end to end {},", "kvwatch_e2e_request_latency_seconds", "humanizeDuration", labels=_P95)
            + f"\nwhile its cause is {cause_among(*Cause)}."
        ),
        first="follow the advice for that cause; if it is ok, look at prompt lengths and at the proxy.",
    ),
)
