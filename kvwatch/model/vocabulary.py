"""The closed sets: states, causes, reasons of failure, severities; and the name of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """What holds an engine back."""

    HEALTHY = "healthy"
    KV_BOUND = "kv_bound"
    COMPUTE_BOUND = "compute_bound"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    """Why an engine is in its state. The set is closed; `CAUSES` says which cause belongs to which state."""

    OK = "ok"
    IDLE = "idle"
    KV_HIGH = "kv_high"
    PREEMPTING = "preempting"
    ADMISSION = "admission"
    SEQUENCE_SLOTS = "sequence_slots"
    STEP_BUDGET = "step_budget"
    COMPUTE = "compute"
    FRONTEND = "frontend"
    DEFERRED = "deferred"
    STALLED = "stalled"
    WARMING_UP = "warming_up"
    UNREACHABLE = "unreachable"
    STALE = "stale"
    NO_VLLM_METRICS = "no_vllm_metrics"
    STATS_DISABLED = "stats_disabled"
    ASLEEP = "asleep"
    AMBIGUOUS = "ambiguous"


CAUSES: Final[Mapping[State, tuple[Cause, ...]]] = MappingProxyType(
    {
        State.HEALTHY: (Cause.OK, Cause.IDLE, Cause.KV_HIGH),
        State.KV_BOUND: (Cause.PREEMPTING, Cause.ADMISSION),
        State.COMPUTE_BOUND: (
            Cause.SEQUENCE_SLOTS,
            Cause.STEP_BUDGET,
            Cause.COMPUTE,
            Cause.FRONTEND,
            Cause.DEFERRED,
            Cause.STALLED,
        ),
        State.UNKNOWN: (
            Cause.WARMING_UP,
            Cause.UNREACHABLE,
            Cause.STALE,
            Cause.NO_VLLM_METRICS,
            Cause.STATS_DISABLED,
            Cause.ASLEEP,
            Cause.AMBIGUOUS,
        ),
    }
)


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


class Severity(StrEnum):
    """How much of a person's attention an alert asks for; ``critical`` is a page."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class EngineId:
    """One engine behind a target: a ``(model_name, engine)`` series, that is one data-parallel rank."""

    model_name: str
    engine: str
