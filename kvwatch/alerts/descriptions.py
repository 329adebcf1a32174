"""What each alert says to the person it wakes: which engine, the numbers that decided, and the first thing to do.

A description is built only while its condition holds. The target, the pod and the like are labels of the alert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from kvwatch.alerts.conditions import latencies
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, ScrapeFailure, Signals, Verdict, Window

Description = Callable[[Policy, Verdict, Signals | None], str]


def storm(_policy: Policy, verdict: Verdict, signals: Signals | None) -> str:
    """The preemptions, and the concurrency the cache can hold."""
    if signals is None:
        return _sentence(verdict, _evidence(verdict))
    fits = signals.sustainable_sequences
    limit = "half of what runs now" if fits is None else f"{fits}, which the cache holds with headroom"
    # Before the fast window is full, both are the same.
    windows = (signals.slow,) if signals.slow.seconds == signals.fast.seconds else (signals.slow, signals.fast)
    return _sentence(
        verdict,
        f"{'; '.join(map(_preemptions, windows))}{_load(signals)}",
        f"let fewer requests in: limit concurrency at the proxy to {limit}, then set --max-num-seqs as kvwatch advises",
    )


def stalled(_policy: Policy, verdict: Verdict, signals: Signals | None) -> str:
    """The silence, and how to get the users out of it."""
    return _sentence(
        verdict,
        f"{_evidence(verdict)}{_load(signals)}",
        "take the replica out of the load balancer, keep its log, restart it if still no token comes out; /health may say 200 meanwhile",
    )


def kv_bound(_policy: Policy, verdict: Verdict, signals: Signals | None) -> str:
    """What the cache lacks, by cause."""
    first = (
        "lower --max-num-seqs, for running requests are preempted and computed again"
        if verdict.cause is Cause.PREEMPTING
        else "give the cache room: --gpu-memory-utilization up to 0.95 if nothing else uses the card, an fp8 KV dtype, or a replica"
    )
    return _sentence(verdict, f"{_evidence(verdict)}{_load(signals)}", first)


def scale_out(_policy: Policy, verdict: Verdict, signals: Signals | None) -> str:
    """How much more cache the work at hand needs."""
    demand = None if signals is None else signals.demand_ratio
    if demand is None or demand <= 1:
        return _sentence(verdict, f"{_evidence(verdict)}{_load(signals)}", "add a replica before the next peak; nothing is lost yet")
    return _sentence(
        verdict,
        f"the work at hand needs {demand:.2f} times the KV cache there is{_load(signals)}",
        f"go from 1 replica to {math.ceil(demand)}, or give this one more KV blocks",
    )


_COMPUTE_FIRST: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.SEQUENCE_SLOTS: "raise --max-num-seqs one step while the cache has room and throughput still grows",
        Cause.STEP_BUDGET: "raise --max-num-batched-tokens towards twice the usual prompt, and watch inter-token latency",
        Cause.COMPUTE: "add a replica; more requests in the batch give no more tokens",
        Cause.FRONTEND: "relieve the host: --api-server-count, --stream-interval, or more processor time for the API server",
        Cause.DEFERRED: "look at what they wait for, remote KV, LoRA adapters or grammars; capacity is not the limit",
    }
)


def compute_bound(_policy: Policy, verdict: Verdict, signals: Signals | None) -> str:
    """Which limit binds, and its lever."""
    return _sentence(verdict, f"{_evidence(verdict)}{_load(signals)}", _COMPUTE_FIRST[verdict.cause])


def latency_missed(policy: Policy, verdict: Verdict, signals: Signals | None) -> str:
    """Every latency beyond its objective."""
    missed = ", ".join(
        f"{name} {p95:.3g} s at the 95th percentile (objective {objective:g} s)"
        for name, p95, objective in latencies(policy, signals)
        if p95 > objective
    )
    return _sentence(
        verdict, f"{missed}{_load(signals)}", "follow the advice for its cause; if that is ok, look at prompt lengths and at the proxy"
    )


_BLIND_FIRST: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.WARMING_UP: "see whether vLLM restarts in a loop",
        Cause.STALE: "see whether kvwatch itself hangs, in its log and at its /-/healthy",
        Cause.NO_VLLM_METRICS: "check that the URL is vLLM's /metrics and not a proxy's or a router's",
        Cause.STATS_DISABLED: "start vLLM without --disable-log-stats",
        Cause.AMBIGUOUS: "compare the target's /metrics with the names in kvwatch_signal_source_info",
    }
)


def blind(_policy: Policy, verdict: Verdict, _signals: Signals | None) -> str:
    """Why kvwatch cannot see; no other alert can fire meanwhile."""
    return _sentence(verdict, f"{_evidence(verdict)}, so no other alert can fire", _BLIND_FIRST[verdict.cause])


def target_down(failure: ScrapeFailure) -> str:
    """Why the scrapes fail."""
    return (
        f"The last scrape failed ({failure.reason}): {failure.detail}. "
        "First: see whether vLLM runs or still loads its model, then open the URL from kvwatch's host."
    )


def _sentence(verdict: Verdict, evidence: str, first: str | None = None) -> str:
    engine = "No engine known" if verdict.engine is None else f"Engine {verdict.engine.engine} of {verdict.engine.model_name}"
    text = f"{engine} ({verdict.state}, {verdict.cause}): {evidence}."
    return text if first is None else f"{text} First: {first}."


def _evidence(verdict: Verdict) -> str:
    return "; ".join(verdict.evidence) or f"{verdict.state}, {verdict.cause}"


def _preemptions(window: Window) -> str:
    count = 0.0 if window.preemptions is None else window.preemptions
    share = "" if window.preemption_ratio is None else f", {window.preemption_ratio:.0%} of the requests that left the running batch"
    return f"{count:.0f} preemptions in {window.seconds:.0f} s{share}"


def _load(signals: Signals | None) -> str:
    """Running, waiting and cache, as far as known, as the tail of a clause."""
    if signals is None:
        return ""
    known = [
        f"{what} {value:{shape}}"
        for what, value, shape in (
            ("running", signals.running, ".0f"),
            ("waiting", signals.waiting, ".0f"),
            ("cache", signals.kv_usage, ".0%"),
        )
        if value is not None
    ]
    return f" ({', '.join(known)})" if known else ""
