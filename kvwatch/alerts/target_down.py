"""``TargetDown``: kvwatch cannot scrape vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvwatch.alerts.definition import AlertDefinition, PrometheusRule
from kvwatch.model import Cause, ScrapeFailure, Severity, TargetView
from kvwatch.text import counted

_WINDOW_SECONDS: Final = 60.0
"""Over which polls are counted. Longer: said later; shorter: a poll every 15 s leaves too few to count."""
_MOSTLY: Final = 0.75
"""Share of the polls of a minute that failed. Higher: more lost polls without an alert; at 1 a good one in five minutes ends it."""


class Failures:
    """The share of failed polls, of one target."""

    def __init__(self) -> None:
        self._polls: list[tuple[float, bool]] = []

    def mostly(self, at: float, failure: ScrapeFailure | None) -> bool:
        """Take in how the poll at *at* ended; whether most polls of the last minute failed.

        A target that answers, but not with vLLM's series, is up: `WatcherBlind` tells of it.
        """
        self._polls.append((at, failure is not None and failure.reason.cause is Cause.UNREACHABLE))
        while at - self._polls[0][0] > _WINDOW_SECONDS:
            self._polls.pop(0)
        return sum(failed for _, failed in self._polls) >= _MOSTLY * len(self._polls)


def describe(failure: ScrapeFailure, others: Sequence[TargetView]) -> str:
    """Why the last scrape that failed did, and whether the *others* named together with the target answer: it alone, or all of them."""
    polled = [view for view in others if view.at is not None]
    answering = sum(view.failure is None for view in polled)
    beside = f"; {answering} of {counted(len(polled), 'other')} named with it {'answers' if answering == 1 else 'answer'}" if polled else ""
    return (
        f"Most scrapes fail, the last for {failure.reason}: {failure.detail}{beside}. "
        "First: see whether vLLM runs or still loads its model, then open the URL from kvwatch's host."
    )


ALERT: Final = AlertDefinition(
    name="TargetDown",
    severity=Severity.WARNING,
    for_seconds=240.0,  # after most of a minute; a restarted vLLM loads its weights for minutes before it serves /metrics
    summary="kvwatch cannot scrape vLLM.",
    fires_when="three of four polls of a target fail for five minutes",
    rule=PrometheusRule(
        comment="Three of four polls fail, each minute of five: one good poll does not end it, one lost in two does not start it.\n"
        "A target that answers without vLLM's series is up, and one that kvwatch has not polled lately may be: both are\n"
        "KVWatchWatcherBlind's. A restarted vLLM loads its weights for minutes before it serves /metrics.",
        description=(
            "most scrapes have failed for five minutes\n"
            '{{- $own := printf "{instance=%q,target=%q}" $labels.instance $labels.target -}}\n'
            '{{- with query (printf "topk(1, increase(kvwatch_target_scrape_failures_total%s[5m]) > 0)" $own) }},\n'
            'mostly for the reason {{ . | first | label "reason" }}{{ end }}\n'
            '{{- with query (printf "count(kvwatch_target_up{job=%q} == 1 unless kvwatch_target_up%s)" $labels.job $own) }};\n'
            "{{ . | first | value }} others of its job answer{{ else }}; no other of its job answers{{ end }}."
        ),
        first="see whether vLLM runs or still loads its model, then open the URL from kvwatch's host.",
    ),
)
