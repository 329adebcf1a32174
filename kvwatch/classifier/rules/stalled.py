"""``compute_bound``/``stalled``: there is work, and no token comes out. ``unknown``/``stale``: the work has left too."""

from __future__ import annotations

from kvwatch.classifier.candidate import Candidate
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import number


def judge(signals: Signals, policy: Policy) -> Candidate | None:
    """No number moves at all for a while, or for longer no token comes out although the engine still steps.

    Gauges are set once a step, so a frozen engine repeats its last ones, and they may look like a full cache or a queue:
    only moving numbers prove life.
    """
    lifeless, silent = signals.seconds_without_life, signals.seconds_without_progress
    work = f"{number(signals.running or 0)} running and {number(signals.waiting or 0)} waiting"
    if lifeless is not None and lifeless >= policy.thresholds.stall and signals.clients_left:
        stale = f"{work} since {number(lifeless)} s, but as many clients have left since: the gauges show the moment before"
        return Candidate(State.UNKNOWN, Cause.STALE, (stale,))
    if lifeless is not None and lifeless >= policy.thresholds.stall:
        evidence = f"{work}, and no counter or gauge has moved for {number(lifeless)} s: the engine does not step"
    elif silent is not None and silent >= policy.thresholds.silence:
        evidence = f"{work}, and no token has come out for {number(silent)} s although the engine still steps"
    else:
        return None
    return Candidate(State.COMPUTE_BOUND, Cause.STALLED, (evidence,))
