"""The closed sets: states, causes, reasons of failure, severities; and the name of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self


class State(StrEnum):
    """What holds an engine back."""

    HEALTHY = "healthy"
    KV_BOUND = "kv_bound"
    COMPUTE_BOUND = "compute_bound"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    """Why an engine is in its state. The set is closed; one row says all that is said of a cause in general.

    A row: value, the state it belongs to, its short name, and what it means in one sentence.
    """

    state: State
    short_name: str
    meaning: str

    def __new__(cls, value: str, state: State, short_name: str, meaning: str) -> Self:
        """Make a member of its row."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.state, member.short_name, member.meaning = state, short_name, meaning
        return member

    OK = ("ok", State.HEALTHY, "OK", "Nothing waits and nothing is preempted.")
    IDLE = ("idle", State.HEALTHY, "Idle", "There is no work.")
    KV_HIGH = (
        "kv_high",
        State.HEALTHY,
        "Cache full, no queue",
        "The cache has long been nearly full; nothing waits, nothing is preempted.",
    )
    PREEMPTING = ("preempting", State.KV_BOUND, "Preempting", "Running requests are preempted from the cache and computed again.")
    ADMISSION = ("admission", State.KV_BOUND, "Admission", "Requests wait because the next prompt does not fit the free cache.")
    SEQUENCE_SLOTS = (
        "sequence_slots",
        State.COMPUTE_BOUND,
        "Sequence slots",
        "As many run as max_num_seqs allows; the cache has room.",
    )
    STEP_BUDGET = ("step_budget", State.COMPUTE_BOUND, "Step budget", "Prompt processing fills every step up to max_num_batched_tokens.")
    COMPUTE = ("compute", State.COMPUTE_BOUND, "Compute", "The processor itself is the limit: more requests bring no more tokens.")
    FRONTEND = ("frontend", State.COMPUTE_BOUND, "Frontend", "The API server in front of the engine is the limit.")
    DEFERRED = ("deferred", State.COMPUTE_BOUND, "Deferred", "Requests wait for remote cache, LoRA or grammar, not for capacity.")
    STALLED = ("stalled", State.COMPUTE_BOUND, "Stalled", "There is work, but no token has come out for a while.")
    WARMING_UP = ("warming_up", State.UNKNOWN, "Warming up", "Not enough polls yet to say anything.")
    UNREACHABLE = ("unreachable", State.UNKNOWN, "Unreachable", "The target does not answer.")
    STALE = ("stale", State.UNKNOWN, "Stale", "No poll has finished lately, so nothing shown before can be trusted.")
    NO_VLLM_METRICS = ("no_vllm_metrics", State.UNKNOWN, "No vLLM metrics", "The target answers, but not with vLLM metrics.")
    STATS_DISABLED = ("stats_disabled", State.UNKNOWN, "Stats disabled", "vLLM runs with its statistics switched off.")
    ASLEEP = ("asleep", State.UNKNOWN, "Asleep", "The engine is in sleep mode; its numbers stand still.")
    AMBIGUOUS = ("ambiguous", State.UNKNOWN, "Ambiguous", "The numbers do not single out one limit.")


CAUSES: Final[Mapping[State, tuple[Cause, ...]]] = MappingProxyType(
    {state: tuple(cause for cause in Cause if cause.state is state) for state in State}
)
"""The causes of each state."""


class FailureReason(StrEnum):
    """Why a scrape gave no snapshots. The set is closed: it is a metric label, a log field and a recording's ``error``."""

    DNS = "dns"
    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"
    TLS = "tls"
    HTTP_STATUS = "http_status"
    REDIRECT = "redirect"
    TOO_LARGE = "too_large"
    ENCODING = "encoding"
    PARSE = "parse"
    EMPTY = "empty"
    NOT_METRICS = "not_metrics"
    NO_VLLM_METRICS = "no_vllm_metrics"
    STATS_DISABLED = "stats_disabled"
    INTERNAL = "internal"

    @property
    def cause(self) -> Cause:
        """What it makes of the target's engines: `Cause.UNREACHABLE` unless something answered that is not a vLLM with its statistics."""
        return _ANSWERED.get(self, Cause.UNREACHABLE)


_ANSWERED: Final[Mapping[FailureReason, Cause]] = MappingProxyType(
    {
        FailureReason.NO_VLLM_METRICS: Cause.NO_VLLM_METRICS,
        FailureReason.NOT_METRICS: Cause.NO_VLLM_METRICS,
        FailureReason.EMPTY: Cause.NO_VLLM_METRICS,
        FailureReason.STATS_DISABLED: Cause.STATS_DISABLED,
    }
)


class Severity(StrEnum):
    """How much of a person's attention an alert asks for; ``critical`` is a page."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class EngineId:
    """One engine behind a target: a ``(model_name, engine)`` series, that is one data-parallel rank."""

    model_name: str
    engine: str
