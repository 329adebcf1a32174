"""Healthy needs fresh evidence: what a view still says at the moment somebody reads it.

A view is immutable and stays in place when its poller hangs, so its age is judged by every reader (metrics, status, page)
at reading time and never by the writer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvwatch.alerts import watcher_blind
from kvwatch.model import Assessment, Cause, State, TargetView, Verdict

MISSED_POLLS: Final = 3
LEAST_SECONDS: Final = 15.0


def stale_after(view: TargetView) -> float:
    """Seconds without a finished poll after which a view is no evidence any more: three polls, but at least 15 s."""
    return max(MISSED_POLLS * view.interval, LEAST_SECONDS)


def is_stale(view: TargetView, now: float) -> bool:
    """Whether the view is too old at monotonic time ``now``. A target that was never polled is not stale, it is not known yet."""
    return view.at is not None and now - view.at > stale_after(view)


def is_up(view: TargetView, now: float) -> bool:
    """Whether the last poll succeeded and is still fresh."""
    return view.at is not None and view.failure is None and not is_stale(view, now)


def as_of(view: TargetView, now: float) -> TargetView:
    """The view as it may be shown at monotonic time ``now``: itself while fresh, and only what outlives its evidence once stale.

    Of a stale view every engine stays listed as ``unknown``/``stale`` with the seconds kvwatch has seen it in each state, and kvwatch is
    blind to it; signals, alerts, advice and the names of the sources are gone.
    """
    if view.at is None or not is_stale(view, now):
        return view
    evidence = (f"no poll of this target has finished for {now - view.at:.0f} s",)
    since = view.at + stale_after(view)
    assessments = tuple(
        Assessment(
            verdict=Verdict(
                engine=known.verdict.engine, state=State.UNKNOWN, cause=Cause.STALE, evidence=evidence, since=_since(known.verdict, since)
            ),
            signals=None,
            state_seconds=known.state_seconds,
            transitions=known.transitions,
            conditions={watcher_blind.ALERT.name: True},
        )
        for known in view.assessments
    )
    return replace(view, assessments=assessments, alerts=(), conditions={}, sources={})


def _since(verdict: Verdict, stale_since: float) -> float:
    """An engine that was unknown before has been unknown all along."""
    return verdict.since if verdict.state is State.UNKNOWN else stale_since
