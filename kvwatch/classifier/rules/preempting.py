"""``kv_bound``/``preempting``: running requests are preempted and computed again."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.candidate import Candidate
from kvwatch.classifier.preemption import is_storm
from kvwatch.classifier.rules.pressure import has_plenty_of_room, is_pinned
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import counted, number, percent

_FEWEST: Final = 3
"""Single preemptions happen to a cache that is well used."""
_WORTH_NAMING: Final = 0.02
_BY_ITSELF: Final = 0.05


def judge(signals: Signals, policy: Policy) -> Candidate | None:
    """What pages; or several preemptions in half a minute and lately, a share of those leaving worth naming. Never with plenty of room.

    The counter lags (vLLM counts a preemption when its victim next emits a token) and counts preemptions for priority and
    for cache resets too, so a cache that was never half full says these were not for want of KV.
    """
    window = signals.fast
    count, ratio = window.preemptions, window.preemption_ratio
    if count is None or has_plenty_of_room(signals):
        return None
    several = count >= _FEWEST and (ratio is None or ratio >= _smallest_ratio(signals)) and signals.recent.preemptions
    if not several and not is_storm(signals, policy):
        return None
    evidence = [f"{counted(count, 'preemption')} in {number(window.seconds)} s"]
    if ratio is not None:
        evidence[0] += f": {percent(ratio)} of the requests that left the running batch were preempted"
    if window.kv_usage is not None:
        evidence.append(f"KV cache at {percent(window.kv_usage.peak)} at its fullest")
    if signals.waiting:
        evidence.append(f"{counted(signals.waiting, 'request')} waiting")
    return Candidate(State.KV_BOUND, Cause.PREEMPTING, tuple(evidence))


def _smallest_ratio(signals: Signals) -> float:
    """From which share of the leaving requests on preemptions are what holds the engine back.

    While nobody waits, or while the slots are taken anyway, a few preemptions are the price of a cache that is well used.
    """
    return _WORTH_NAMING if is_sustained(signals) and not is_pinned(signals) else _BY_ITSELF
