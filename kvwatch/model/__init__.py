"""The vocabulary of kvwatch: what every package takes and returns.

Values only. Nothing here reads a clock, does I/O or imports anything of ours. An absent number is ``None``; it is
never 0, NaN or -1. Times called ``at`` are seconds of one monotonic clock (live) or of the recording (replay); they
may be subtracted from one another and mean nothing else.
"""

from __future__ import annotations

from kvwatch.model.scrape import (
    COUNTERS,
    HISTOGRAMS,
    MOST_ENGINES,
    CounterTrait,
    EngineConfig,
    Histogram,
    Scrape,
    ScrapeFailure,
    Snapshot,
    counters_with,
)
from kvwatch.model.signals import GaugeStats, Quantiles, Saturation, Signals, Window
from kvwatch.model.verdict import (
    Alert,
    Assessment,
    BaselineComparison,
    BaselineLine,
    Change,
    Others,
    TargetView,
    Verdict,
    recommended_max_num_seqs,
)
from kvwatch.model.vocabulary import CAUSES, Cause, EngineId, FailureReason, Severity, State

__all__ = [
    "CAUSES",
    "COUNTERS",
    "HISTOGRAMS",
    "MOST_ENGINES",
    "Alert",
    "Assessment",
    "BaselineComparison",
    "BaselineLine",
    "Cause",
    "Change",
    "CounterTrait",
    "EngineConfig",
    "EngineId",
    "FailureReason",
    "GaugeStats",
    "Histogram",
    "Others",
    "Quantiles",
    "Saturation",
    "Scrape",
    "ScrapeFailure",
    "Severity",
    "Signals",
    "Snapshot",
    "State",
    "TargetView",
    "Verdict",
    "Window",
    "counters_with",
    "recommended_max_num_seqs",
]
