"""How urgent an engine is to somebody who was woken: its state, and before all of them those that serve nobody."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kvwatch.model import Cause, Verdict


class Condition(StrEnum):
    """Worst first."""

    DOWN = "down"
    KV_BOUND = "kv_bound"
    COMPUTE_BOUND = "compute_bound"
    UNKNOWN = "unknown"
    HEALTHY = "healthy"


WORDS: Final[Mapping[Condition, str]] = MappingProxyType(
    {
        Condition.DOWN: "Down or hung",
        Condition.KV_BOUND: "KV-bound",
        Condition.COMPUTE_BOUND: "Compute-bound",
        Condition.UNKNOWN: "Unknown",
        Condition.HEALTHY: "Healthy",
    }
)
_SERVES_NOBODY: Final = frozenset({Cause.UNREACHABLE, Cause.STALE, Cause.STALLED})
ORDER: Final = tuple(Condition)


def condition_of(verdict: Verdict) -> Condition:
    """That of an engine with this verdict."""
    return Condition.DOWN if verdict.cause in _SERVES_NOBODY else Condition(verdict.state)


def pill_words(verdict: Verdict) -> str:
    """What stands in the pill: the state, or that it is down or hung."""
    if verdict.cause is Cause.STALLED:
        return "Hung"
    condition = condition_of(verdict)
    return "Down" if condition is Condition.DOWN else WORDS[condition]


def summary(counts: Mapping[Condition, int]) -> str:
    """How many are in which trouble, for the title of the tab and for who cannot see the page."""
    engines = sum(counts.values())
    wrong = [f"{counts[one]} {_in_a_sentence(one)}" for one in ORDER if one is not Condition.HEALTHY and counts[one]]
    if not engines:
        return "nothing is watched"
    return f"{', '.join(wrong)} of {engines}" if wrong else "healthy" if engines == 1 else f"all {engines} healthy"


def title(counts: Mapping[Condition, int]) -> str:
    """The tab's title, which a narrow tab cuts off: the number of engines in trouble comes first."""
    wrong = sum(counts[one] for one in (Condition.DOWN, Condition.KV_BOUND, Condition.COMPUTE_BOUND))
    return f"({wrong}) {summary(counts)}" if wrong else summary(counts)


def _in_a_sentence(condition: Condition) -> str:
    word = WORDS[condition]
    return word if condition is Condition.KV_BOUND else word.lower()
