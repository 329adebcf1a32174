"""The words and number formats of the status page: what people read where programs read enum members and floats."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kvwatch.model import Cause, State

ABSENT: Final = "\N{EN DASH}"
_THIN: Final = "\N{NARROW NO-BREAK SPACE}"
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_WHOLE_FROM: Final = 100
"""Numbers this large are shown without decimals."""

STATE_WORDS: Final[Mapping[State, str]] = MappingProxyType(
    {
        State.HEALTHY: "Healthy",
        State.KV_BOUND: "KV-bound",
        State.COMPUTE_BOUND: "Compute-bound",
        State.UNKNOWN: "Unknown",
    }
)

SEVERITY_ORDER: Final = (State.KV_BOUND, State.COMPUTE_BOUND, State.UNKNOWN, State.HEALTHY)
"""Worst first."""

CAUSE_WORDS: Final[Mapping[Cause, tuple[str, str]]] = MappingProxyType(
    {
        Cause.OK: ("OK", "Nothing waits and nothing is preempted."),
        Cause.IDLE: ("Idle", "There is no work."),
        Cause.KV_HIGH: ("Cache full, no queue", "The cache has long been nearly full, yet nothing waits and nothing is preempted."),
        Cause.PREEMPTING: ("Preempting", "Running requests are preempted from the cache and computed again."),
        Cause.ADMISSION: ("Admission", "Requests wait because the next prompt does not fit the free cache."),
        Cause.SEQUENCE_SLOTS: ("Sequence slots", "As many requests run as max_num_seqs allows, and the cache has room."),
        Cause.STEP_BUDGET: ("Step budget", "Prompt processing fills every step up to max_num_batched_tokens."),
        Cause.COMPUTE: ("Compute", "The processor itself is the limit: more requests bring no more tokens."),
        Cause.FRONTEND: ("Frontend", "The API server in front of the engine is the limit."),
        Cause.DEFERRED: ("Deferred", "Requests wait for remote cache, LoRA or grammar, not for capacity."),
        Cause.STALLED: ("Stalled", "There is work, but no token has come out for a while."),
        Cause.WARMING_UP: ("Warming up", "Not enough polls yet to say anything."),
        Cause.UNREACHABLE: ("Unreachable", "The target does not answer."),
        Cause.STALE: ("Stale", "No poll has finished lately, so nothing shown before can be trusted."),
        Cause.NO_VLLM_METRICS: ("No vLLM metrics", "The target answers, but not with vLLM metrics."),
        Cause.STATS_DISABLED: ("Stats disabled", "vLLM runs with its statistics switched off."),
        Cause.ASLEEP: ("Asleep", "The engine is in sleep mode; its numbers stand still."),
        Cause.AMBIGUOUS: ("Ambiguous", "The numbers do not single out one limit."),
    }
)
"""Short name, and what it means in one sentence."""


def number(value: float | None, digits: int = 1) -> str:
    """A count or rate with thousands set apart; decimals only where they say something."""
    if value is None:
        return ABSENT
    if value == int(value) or abs(value) >= _WHOLE_FROM:
        digits = 0
    return f"{value:,.{digits}f}".replace(",", _THIN)


def percent(ratio: float | None) -> str:
    """A ratio as a percentage; whole above 10 %."""
    if ratio is None:
        return ABSENT
    return f"{ratio:.0%}".replace("%", f"{_THIN}%") if ratio == 0 or ratio >= 0.1 else f"{ratio:.1%}".replace("%", f"{_THIN}%")  # noqa: PLR2004 - two digits


def seconds(value: float | None) -> str:
    """A latency: milliseconds below a second, seconds above."""
    if value is None:
        return ABSENT
    if value < 1:
        return f"{value * 1000:.3g}{_THIN}ms"
    return f"{value:.3g}{_THIN}s" if value < _WHOLE_FROM else f"{value:.0f}{_THIN}s"


def duration(value: float) -> str:
    """How long something has lasted, in the two largest units."""
    left = max(0, int(value))
    parts = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{_THIN}{unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or f"0{_THIN}s"
