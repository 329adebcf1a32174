"""Numbers that several rules look at."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Number
from kvwatch.model import GaugeStats
from kvwatch.text import number, percent


def mean(stats: GaugeStats | None) -> float | None:
    """The mean of a gauge over its window, where it was seen at all."""
    return stats.mean if stats is not None else None


RUNNING: Final = Number("running", lambda s: mean(s.recent.running), number)
QUEUE: Final = (
    Number("waiting for capacity", lambda s: mean(s.recent.queue), number),
    Number("scrapes with a queue", lambda s: s.recent.queued_share, percent),
)
FULLEST: Final = Number("KV cache at its fullest", lambda s: s.fast.kv_usage.peak if s.fast.kv_usage is not None else None, percent)
