"""``compute_bound``/``stalled``: there is work, and no token comes out. ``unknown``/``stale``: the work has left too."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Candidate, Number, Rule
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import number


def judge(signals: Signals, policy: Policy) -> Candidate | None:
    """No number moves at all for a while, or for longer no token comes out and no prompt gets further although the engine still steps.

    Gauges are set once a step, so a frozen engine repeats its last ones, and they may look like a full cache or a queue:
    only moving numbers prove life.
    """
    lifeless, silent = signals.seconds_without_life or 0.0, signals.seconds_without_progress or 0.0
    work = f"{number(signals.running or 0)} running and {number(signals.waiting or 0)} waiting"
    still = lifeless >= max(signals.stall_patience, policy.thresholds.stall)
    if still and signals.clients_left:
        stale = f"{work} since {number(lifeless)} s, but as many clients have left since: the gauges show the moment before"
        return Candidate(State.UNKNOWN, Cause.STALE, (stale,))
    if silent >= policy.thresholds.silence:
        moves = "no counter or gauge has moved either" if still else "although the engine still steps"
        evidence = f"{work}, no token has come out and no prompt got further for {number(silent)} s: {moves}"
    elif still:
        evidence = f"{work}, and no counter or gauge has moved for {number(lifeless)} s: the engine does not step"
    else:
        return None
    if signals.waits_for_others:
        evidence += "; all of them wait for remote KV, LoRA or grammar: the peer that should deliver is silent"
    return Candidate(State.COMPUTE_BOUND, Cause.STALLED, (evidence,), sustained=True)


RULE: Final = Rule(
    Cause.STALLED,
    (
        Number("seconds without a token", lambda s: s.seconds_without_progress, number),
        Number("seconds without any movement", lambda s: s.seconds_without_life, number),
    ),
    judge,
)
