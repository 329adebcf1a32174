"""What a check found: per engine the verdict, the five lines, the capacity and the advice; and the exit code. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvwatch.config.policy import KnownConfig
from kvwatch.model import Assessment, Cause, Severity, State

HEALTHY: Final = 0
BOUND: Final = 1
STORM: Final = 2
UNKNOWN: Final = 3
_WORST_FIRST: Final = (STORM, BOUND, UNKNOWN, HEALTHY)
"""An engine known to be bound outweighs one that cannot be seen."""


def exit_code(assessment: Assessment) -> int:
    """0 healthy, 1 bound, 2 preemption storm or stalled, 3 unknown: the Nagios convention."""
    verdict = assessment.verdict
    if verdict.state is State.UNKNOWN:
        return UNKNOWN
    if verdict.cause is Cause.STALLED or any(alert.severity is Severity.CRITICAL for alert in assessment.alerts):
        return STORM
    return HEALTHY if verdict.state is State.HEALTHY else BOUND


@dataclass(frozen=True, slots=True)
class Report:
    """What a check of one target found."""

    target: str
    seconds: float
    """Time between the first and the last scrape."""
    scrapes: int
    failures: int
    known: KnownConfig
    assessments: tuple[Assessment, ...]
    """The last word on every engine."""

    @property
    def exit_code(self) -> int:
        """That of the worst engine; unknown where none was judged."""
        codes = {exit_code(assessment) for assessment in self.assessments}
        return next((code for code in _WORST_FIRST if code in codes), UNKNOWN)


def five_lines(assessment: Assessment) -> dict[str, float | None]:
    """Throughput (tokens/s), preemption ratio, TTFT, ITL and the 99th percentile of whole requests (seconds), in that order."""
    signals = assessment.signals
    if signals is None:
        return {}
    first, between, whole = signals.time_to_first_token, signals.inter_token_latency, signals.e2e_latency
    return {
        "generation_tokens_per_second": signals.generation_tokens_per_second,
        "preemption_ratio": signals.slow.preemption_ratio,
        "time_to_first_token_p50": first.p50 if first else None,
        "time_to_first_token_p95": first.p95 if first else None,
        "inter_token_latency_p50": between.p50 if between else None,
        "inter_token_latency_p99": between.p99 if between else None,
        "e2e_request_latency_p99": whole.p99 if whole else None,
    }


def capacity(assessment: Assessment) -> dict[str, float | None]:
    """The pool and what it is asked for; tokens, sequences, seconds."""
    signals = assessment.signals
    if signals is None:
        return {}
    return {
        "kv_usage": signals.kv_usage,
        "capacity_tokens": signals.capacity_tokens,
        "free_tokens": None if signals.free_tokens is None else math.floor(signals.free_tokens),
        "running": signals.running,
        "waiting": signals.waiting,
        "tokens_per_sequence": signals.tokens_per_sequence,
        "sustainable_sequences": signals.sustainable_sequences,
        "demand_ratio": signals.demand_ratio,
        "seconds_to_full": signals.seconds_to_full,
    }
