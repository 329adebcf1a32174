"""``kv_bound``/``preempting``: running requests are preempted and computed again."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.preemption import is_storm
from kvwatch.classifier.rule import Candidate, Number, Rule
from kvwatch.classifier.rules.numbers import FULLEST
from kvwatch.classifier.rules.pressure import has_plenty_of_room, is_hot, is_over, slots_are_taken
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import counted, number, percent

_WORTH_NAMING: Final = 0.02
"""Share of the leaving requests from which on a queue behind them is theirs (3 %: ``report_wide_full``)."""
_BY_ITSELF: Final = 0.05
"""Share from which on preemptions are named even while nobody waits (one in twenty among few: ``real_few_long``)."""

_RECOMPUTING: Final = 0.5
"""Sequences without a token on average, where nothing new is in its prefill (one of eight: ``report_hidden_thrash``)."""
_FULL: Final = 0.90
"""KV usage (0..1) at the fullest moment. Lower: prompts that take long to compute are called preempted."""
_SEVERAL: Final = 3
"""Preemptions in the fast window that need no second scrape to be believed."""


def judge(signals: Signals, policy: Policy) -> Candidate | None:
    """What pages; or a share of those leaving the batch in the slow window worth naming, while it still happens.

    The slow window, because few long sequences are preempted once in half a minute, and a crowd with a queue before a full cache now and
    then. Never with plenty of room: the counter counts preemptions for priority and for cache resets too.
    """
    count, share = signals.preempted or 0.0, signals.preempted_share
    if is_over(signals) or has_plenty_of_room(signals):
        return None
    still = bool(signals.preempted_lately) or (count > 1 and _waited(signals) and is_hot(signals))
    lasting = still and (share is None or share >= _smallest_share(signals, count))
    if not count or not (lasting or is_storm(signals, policy)):
        return _computed_again(signals)
    evidence = [f"{counted(count, 'preemption')} in {number(signals.slow.seconds)} s"]
    if share is not None:
        evidence[0] += f": {percent(share)} of the requests that left the running batch were preempted"
    if signals.fast.kv_usage is not None:
        evidence.append(f"KV cache at {percent(signals.fast.kv_usage.peak)} at its fullest")
    if signals.waiting:
        evidence.append(f"{counted(signals.waiting, 'request')} waiting")
    several = (signals.preempted_lately or 0.0) >= _SEVERAL
    return Candidate(State.KV_BOUND, Cause.PREEMPTING, tuple(evidence), sustained=several)


def _computed_again(signals: Signals) -> Candidate | None:
    """Victims that no counter shows: in a full cache, sequences that get no token although no prompt has come to its end for long."""
    again, usage = signals.sequences_recomputing, signals.fast.kv_usage
    if not again or again < _RECOMPUTING or usage is None or usage.peak < _FULL:
        return None
    evidence = (
        f"{number(again)} of the running sequences get no token and no prompt ended in {number(signals.fast.seconds)} s: computed again",
        f"KV cache at {percent(usage.peak)} at its fullest",
    )
    return Candidate(State.KV_BOUND, Cause.PREEMPTING, evidence)


def _smallest_share(signals: Signals, count: float) -> float:
    """While nobody waits, or while the slots are taken anyway, a few preemptions are the price of a cache that is well used.

    One always is: alone it is no cause of a queue.
    """
    return _WORTH_NAMING if _waited(signals) and count > 1 and not slots_are_taken(signals) else _BY_ITSELF


def _waited(signals: Signals) -> bool:
    queue = signals.recent.queue
    return queue is not None and queue.mean >= 1


RULE: Final = Rule(
    Cause.PREEMPTING,
    (
        Number("preemptions", lambda s: s.preempted, number),
        Number("of the requests that left the running batch", lambda s: s.preempted_share, percent),
        FULLEST,
    ),
    judge,
)
