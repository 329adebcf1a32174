"""A stretch of snapshots becomes one `Window`: gauges as mean, low, peak and last; counters as increases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Final, cast

from kvwatch.model import COUNTERS, GaugeStats, Snapshot, Window

_INCREASES: Final = tuple(one.name for one in fields(Window) if one.name in COUNTERS)
"""The counters whose increase a `Window` holds."""
_GAUGES: Final = attrgetter("running", "waiting", "waiting_deferred", "kv_usage")


def summarise(snapshots: Sequence[Snapshot]) -> Window:
    """What *snapshots* (oldest first, at least one, no restart among them) say together."""
    first, last = snapshots[0], snapshots[-1]
    runnings, waiting, deferred, usages = zip(*map(_GAUGES, snapshots), strict=True)
    running, waiting_stats = gauge(runnings), gauge(waiting)
    increases = {name: increase(getattr(first, name), getattr(last, name)) for name in _INCREASES}
    queue = [queue_of(s) for s in snapshots] if any(deferred) else waiting
    known = _known(queue)
    return Window(
        seconds=last.at - first.at,
        samples=len(snapshots),
        running=running,
        waiting=waiting_stats,
        queue=waiting_stats if queue is waiting else gauge(queue),
        queued_share=sum(length > 0 for length in known) / len(known) if known else None,
        deferred=gauge(deferred),
        kv_usage=gauge(usages),
        preemption_ratio=preemption_ratio(increases["preemptions"], increases["finished"], running),
        **increases,
    )


def queue_of(snapshot: Snapshot) -> float | None:
    """Requests that wait for capacity. Before vLLM 0.20 the deferred ones cannot be told apart and count as waiting."""
    if snapshot.waiting is None:
        return None
    deferred = snapshot.waiting_deferred
    return max(0.0, snapshot.waiting - deferred) if deferred else snapshot.waiting


def gauge(values: Sequence[float | None]) -> GaugeStats | None:
    """Statistics of the values that are there; ``None`` when there is none."""
    known = _known(values)
    if not known:
        return None
    peak = max(known)
    return GaugeStats(mean=min(sum(known) / len(known), peak), low=min(known), peak=peak, last=known[-1])


def _known(values: Sequence[float | None]) -> Sequence[float]:
    """The values that are there."""
    return [value for value in values if value is not None] if None in values else cast("Sequence[float]", values)


def increase(first: float | None, last: float | None) -> float | None:
    """By how much a counter grew; ``None`` when it is missing at either end or went back (a histogram's sum may)."""
    return None if first is None or last is None or last < first else last - first


def preemption_ratio(preemptions: float | None, finished: float | None, running: GaugeStats | None) -> float | None:
    """Share of the requests leaving the running batch that were preempted, 0..1; ``None`` while it cannot be known.

    ``preemptions / max(preemptions + finished, mean running)``: while fewer requests have left than are
    running, the running ones count instead, so that two preemptions among a hundred long answers read 2 %, not 100 %.
    """
    if preemptions is None or finished is None:
        return None
    denominator = max(preemptions + finished, running.mean if running else 0.0)
    return preemptions / denominator if denominator > 0 else None


def rate(amount: float | None, window: Window) -> float | None:
    """*amount* per second of the window."""
    return None if amount is None or window.seconds <= 0 else amount / window.seconds


def computed_prompt(window: Window) -> float | None:
    """Prompt tokens really computed; before vLLM 0.16 cached ones cannot be told apart and count as computed."""
    return window.computed_prompt_tokens if window.computed_prompt_tokens is not None else window.prompt_tokens


def prefill_share(window: Window) -> float | None:
    """Share of prompt tokens among the tokens computed."""
    prompt = computed_prompt(window)
    if prompt is None or window.generation_tokens is None or prompt + window.generation_tokens <= 0:
        return None
    return prompt / (prompt + window.generation_tokens)
