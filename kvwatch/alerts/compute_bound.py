"""``ComputeBound``: requests wait for an engine's compute side or scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kvwatch.alerts.definition import EngineAlert, Facts, PrometheusRule
from kvwatch.alerts.promql import RUNNING, WAITING, cause_among, number
from kvwatch.alerts.wording import advised, evidence_of, load_of, sentence
from kvwatch.model import Cause, Severity, State

_FIRST: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.SEQUENCE_SLOTS: "raise --max-num-seqs one step while the cache has room and throughput still grows",
        Cause.STEP_BUDGET: "raise --max-num-batched-tokens towards twice the usual prompt, and watch inter-token latency",
        Cause.COMPUTE: "add a replica; more requests in the batch give no more tokens",
        Cause.FRONTEND: "relieve the host: --api-server-count, --stream-interval, or more processor time for the API server",
        Cause.DEFERRED: "look at what they wait for, remote KV, LoRA adapters or grammars; capacity is not the limit",
    }
)


def condition(facts: Facts) -> bool | None:
    """The state of that name but for `stalled`, which pages by itself."""
    if facts.verdict.state is State.UNKNOWN:
        return None
    return facts.verdict.state is State.COMPUTE_BOUND and facts.verdict.cause is not Cause.STALLED


def describe(facts: Facts) -> str:
    """Which limit binds, and its lever."""
    verdict = facts.verdict
    return sentence(verdict, f"{evidence_of(verdict)}{load_of(facts.signals)}", advised(facts.advice, _FIRST[verdict.cause]))


ALERT: Final = EngineAlert(
    name="ComputeBound",
    severity=Severity.WARNING,
    for_seconds=300.0,  # a queue that drains within five minutes needs no change of the configuration
    summary="Requests wait for a vLLM engine's compute side or scheduler, not for its KV cache.",
    fires_when="`compute_bound` for five minutes",
    condition=condition,
    describe=describe,
    rule=PrometheusRule(
        comment="A busy accelerator is no fault; a queue that stays for five minutes asks for a change.",
        description=(
            f"cause {cause_among(*_FIRST)}{RUNNING}{WAITING}"
            + number(", {} tokens/s out", "kvwatch_generation_tokens_per_second", 'printf "%.0f"')
            + "."
        ),
        first=(
            number(
                "set --max-num-seqs to {}",
                "kvwatch_recommended_max_num_seqs",
                otherwise="look up the cause in the runbook; each has its own lever",
            )
            + "."
        ),
    ),
)
