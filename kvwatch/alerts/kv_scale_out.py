"""``KVScaleOut``: the load has long been too much for the KV cache of one replica."""

from __future__ import annotations

import math
from typing import Final

from kvwatch.alerts.definition import EngineAlert, Facts, PrometheusRule
from kvwatch.alerts.promql import number
from kvwatch.alerts.wording import advised, evidence_of, load_of, sentence
from kvwatch.model import Cause, Severity, State


def condition(facts: Facts) -> bool | None:
    """Cache above the watermark without harm yet, or more work than one cache holds."""
    if facts.verdict.state is State.UNKNOWN:
        return None
    demand = None if facts.signals is None else facts.signals.demand_ratio
    return facts.verdict.cause is Cause.KV_HIGH or (demand is not None and demand > 1)


def describe(facts: Facts) -> str:
    """How much more cache the work at hand needs."""
    verdict, signals = facts.verdict, facts.signals
    demand = None if signals is None else signals.demand_ratio
    if demand is None or demand <= 1:
        what, otherwise = evidence_of(verdict), "add a replica before the next peak; nothing is lost yet"
    else:
        more = math.ceil(demand * 100) / 100  # never "1.00 times"
        what = f"the work at hand needs {more:.2f} times the KV cache there is"
        otherwise = "add replicas until it needs no more than there is, or give this one more KV blocks"
    return sentence(verdict, f"{what}{load_of(signals)}", advised(facts.advice, otherwise))


ALERT: Final = EngineAlert(
    name="KVScaleOut",
    severity=Severity.WARNING,
    for_seconds=900.0,  # an autoscaler had its chance: a new replica loads its model in minutes
    summary="The load has long been too much for the KV cache of one vLLM replica.",
    fires_when="usage long above 90 %, or demand above 1, for 15 minutes",
    condition=condition,
    describe=describe,
    rule=PrometheusRule(
        comment="kv_high: the cache is above its watermark (0.90) although nothing waits. Demand above 1: running and waiting requests\n"
        "together need more than the whole cache. An autoscaler had its chance: a new replica loads its model in minutes.",
        description=(
            "for 15 minutes its KV cache has been nearly full or too small"
            + number("; KV demand {} times the cache", "kvwatch_kv_demand_ratio", 'printf "%.2f"')
            + number(", usage {}", "kvwatch_kv_cache_usage_ratio", "humanizePercentage")
            + "."
        ),
        first=(
            "see on the status page whether others have room; if not, add replicas until the demand is below 1,\n"
            "or give this one more KV blocks."
        ),
    ),
)
