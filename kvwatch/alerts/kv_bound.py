"""``KVBound``: the KV cache holds a vLLM engine back."""

from __future__ import annotations

from typing import Final

from kvwatch.alerts.definition import EngineAlert, Facts, PrometheusRule
from kvwatch.alerts.promql import RUNNING, WAITING, cause_among, number
from kvwatch.alerts.wording import advised, evidence_of, load_of, sentence
from kvwatch.model import CAUSES, Cause, Severity, State


def condition(facts: Facts) -> bool | None:
    """The state of that name, whatever its cause."""
    return None if facts.verdict.state is State.UNKNOWN else facts.verdict.state is State.KV_BOUND


def describe(facts: Facts) -> str:
    """What the cache lacks, by cause."""
    otherwise = (
        "lower --max-num-seqs, for running requests are preempted and computed again"
        if facts.verdict.cause is Cause.PREEMPTING
        else "give the cache room: --gpu-memory-utilization up to 0.95 if nothing else uses the card, an fp8 KV dtype, or a replica"
    )
    return sentence(facts.verdict, f"{evidence_of(facts.verdict)}{load_of(facts.signals)}", advised(facts.advice, otherwise))


ALERT: Final = EngineAlert(
    name="KVBound",
    severity=Severity.WARNING,
    for_seconds=120.0,  # a burst that drains in two minutes needs nobody
    summary="The KV cache holds a vLLM engine back.",
    fires_when="`kv_bound` for two minutes",
    condition=condition,
    describe=describe,
    rule=PrometheusRule(
        comment="A burst that drains in two minutes needs nobody.",
        description=(
            f"cause {cause_among(*CAUSES[State.KV_BOUND])}{RUNNING}{WAITING}"
            + number(", {} KV tokens free", "kvwatch_kv_free_tokens", 'printf "%.0f"')
            + number(" of {}", "kvwatch_kv_capacity_tokens", 'printf "%.0f"')
            + "."
        ),
        first=(
            number(
                "set --max-num-seqs to {}",
                "kvwatch_recommended_max_num_seqs",
                otherwise="when preempting, lower --max-num-seqs"
                + number(" to {}", "kvwatch_sustainable_sequences")
                + ";\nwhen admission, give the cache room (--gpu-memory-utilization, an fp8 KV dtype) or add a replica",
            )
            + "."
        ),
    ),
)
