"""``PreemptionStorm``: running requests are preempted and computed again, at a rate worth waking someone."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from kvwatch.alerts.definition import EngineAlert, Facts, PrometheusRule
from kvwatch.alerts.promql import RUNNING, WAITING, number
from kvwatch.alerts.wording import evidence_of, load_of, sentence
from kvwatch.model import Severity, State, Window, recommended_max_num_seqs

_SLOW: Final = 'window="slow",'
_NO_COUNT: Final = "running requests are preempted"
_SHARE: Final = ", {} of the requests that left the running batch"


def condition(facts: Facts) -> bool | None:
    """What the classifier found; while the cache still binds, a dip below the ratio says neither yes nor no."""
    if facts.verdict.storm:
        return True
    return None if facts.verdict.state in (State.KV_BOUND, State.UNKNOWN) else False


def describe(facts: Facts) -> str:
    """The preemptions, and the concurrency the cache can hold."""
    signals = facts.signals
    fits = recommended_max_num_seqs(facts.advice) or (None if signals is None else signals.sustainable_sequences)
    limit = "half of what runs now" if fits is None else f"{fits}, as many as the cache holds"
    first = f"let fewer requests in: limit concurrency at the proxy to {limit}, then --max-num-seqs to the same"
    if signals is None:
        return sentence(facts.verdict, evidence_of(facts.verdict), first)
    # Before the fast window is full, both are the same.
    windows = (signals.slow,) if signals.slow.seconds == signals.fast.seconds else (signals.slow, signals.fast)
    return sentence(facts.verdict, f"{'; '.join(dict.fromkeys(map(_preemptions, windows)))}{load_of(signals)}", first)


def _preemptions(window: Window) -> str:
    counted = _NO_COUNT if window.preemptions is None else f"{window.preemptions:.0f} preemptions in {window.seconds:.0f} s"
    share = "" if window.preemption_ratio is None else f", {window.preemption_ratio:.0%} of the requests that left the running batch"
    return f"{counted}{share}"


ALERT: Final = EngineAlert(
    name="PreemptionStorm",
    severity=Severity.CRITICAL,
    for_seconds=0.0,  # the two windows are the smoothing
    summary="vLLM throws running requests off the GPU and computes them again.",
    fires_when="more than 10 % of the requests that leave the running batch are preempted, over two minutes and over 30 seconds: at once",
    labels=MappingProxyType({"priority": "P1"}),
    hold_seconds=0.0,  # it never stands beside a state that says something else
    condition=condition,
    describe=describe,
    rule=PrometheusRule(
        comment="The slow window makes it worth waking someone, the fast one ends it when the storm ends, the count keeps a quiet server\n"
        "quiet: no `for`. A dip while the cache still binds does not end it, and it never stands beside another state.",
        description=(
            number(
                "{} preemptions in the slow window", "kvwatch_preemptions", 'printf "%.0f"', labels=_SLOW, lately="max", otherwise=_NO_COUNT
            )
            + number(_SHARE, "kvwatch_preemption_ratio", "humanizePercentage", labels=_SLOW, lately="max")
            + RUNNING
            + WAITING
            + number(", cache peak {}", "kvwatch_kv_cache_usage_peak_ratio", "humanizePercentage")
            + "."
        ),
        first=(
            "let fewer requests in: limit concurrency at the proxy to\n"
            + number(
                "{}",
                "kvwatch_recommended_max_num_seqs",
                otherwise=number("{}", "kvwatch_sustainable_sequences", otherwise="half of what runs now"),
            )
            + ",\nthen --max-num-seqs to the same."
        ),
    ),
)
