"""``KVScaleOut``: the load has long been too much for the KV cache of one replica.

Both of its conditions look at the slow window, and a cache that binds does not end what a full one began: else a single scrape between two
waves of requests, or the trouble growing worse, would begin its quarter of an hour anew.
"""

from __future__ import annotations

import math
from typing import Final

from kvwatch.alerts.definition import EngineAlert, Facts, PrometheusRule
from kvwatch.alerts.promql import number
from kvwatch.alerts.wording import advised, evidence_of, load_of, sentence
from kvwatch.model import Cause, Severity, Signals, State


def condition(facts: Facts) -> bool | None:
    """Cache above the watermark, binding, or mostly smaller than what the work needs; the load of a stalled engine asks for nothing."""
    verdict = facts.verdict
    if verdict.state is State.UNKNOWN or verdict.cause is Cause.STALLED:
        return None
    return verdict.cause is Cause.KV_HIGH or verdict.state is State.KV_BOUND or _demand(facts) > 1


def _demand(facts: Facts) -> float:
    """How many caches the work needs; 0 where that is not known."""
    demand = None if facts.signals is None else facts.signals.lasting_demand_ratio
    return 0.0 if demand is None else demand


def _lately(signals: Signals | None) -> str:
    return "" if signals is None else f", the median of {signals.slow.seconds:.0f} s"


def describe(facts: Facts) -> str:
    """How much more cache the work at hand needs."""
    verdict, demand = facts.verdict, _demand(facts)
    if demand > 1:
        more = math.ceil(demand * 100) / 100  # never "1.00 times"
        what = f"the work needed {more:.2f} times the KV cache there is{_lately(facts.signals)}"
        otherwise = "add replicas until it needs no more than there is, or give this one more KV blocks"
    elif verdict.state is State.KV_BOUND:
        what, otherwise = evidence_of(verdict), "add a replica, or give this one more KV blocks"
    else:
        what, otherwise = evidence_of(verdict), "add a replica before the next peak; nothing is lost yet"
    return sentence(verdict, f"{what}{load_of(facts.signals)}", advised(facts.advice, otherwise))


ALERT: Final = EngineAlert(
    name="KVScaleOut",
    severity=Severity.WARNING,
    for_seconds=900.0,  # an autoscaler had its chance: a new replica loads its model in minutes
    summary="The load has long been too much for the KV cache of one vLLM replica.",
    fires_when="the cache above 90 %, binding, or smaller than the demand, for 15 minutes",
    condition=condition,
    describe=describe,
    rule=PrometheusRule(
        comment="The cache is above its watermark (0.90) although nothing waits; it binds; or running and waiting requests together need\n"
        "more than all of it, over most of two minutes. An autoscaler had its chance: a new replica loads its model in minutes.",
        description=(
            "for 15 minutes its KV cache has been nearly full or too small"
            + number("; KV demand {} times the cache on average", "kvwatch_kv_demand_ratio", 'printf "%.2f"', lately="avg")
            + number(", usage {}", "kvwatch_kv_cache_usage_ratio", "humanizePercentage")
            + "."
        ),
        first=(
            "see on the status page whether others have room; if not, add replicas until the demand is below 1,\n"
            "or give this one more KV blocks."
        ),
    ),
)
