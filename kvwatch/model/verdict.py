"""What kvwatch says: of an engine, and of a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvwatch.model.scrape import EngineConfig, ScrapeFailure
from kvwatch.model.signals import Signals
from kvwatch.model.vocabulary import Cause, EngineId, Severity, State


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer about one engine: state, cause, the numbers that decided, and since when."""

    engine: EngineId | None
    """``None`` while no engine of the target is known."""
    state: State
    cause: Cause
    evidence: tuple[str, ...]
    since: float
    """`at` of the scrape at which this state began."""
    storm: bool | None = None
    """Whether the preemptions behind this verdict are worth a page; never true beside another state than ``kv_bound``. ``None`` where
    nobody knows: the scrape failed, or preemptions are not reported."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that is firing for one engine (or, without engine, for a target)."""

    name: str
    severity: Severity
    since: float
    summary: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One piece of advice: change one thing, measure again."""

    lever: str
    """The flag or the action, e.g. ``--max-num-seqs`` or ``add replicas``."""
    current: str | None = None
    proposed: str | None = None
    reason: str
    """The arithmetic in one sentence."""
    effect: str
    caution: str
    gain: float | None = None
    """How many more of the requests that want to run it lets run; ``None`` where that cannot be computed."""


@dataclass(frozen=True, slots=True)
class BaselineLine:
    """One of the five lines of an engine against its baseline."""

    name: str
    """``throughput``, ``preemption``, ``ttft``, ``itl`` or ``p99``."""
    change: float
    """A share of the baseline; for the preemption ratio the difference."""
    worse: bool
    """By more than the line's tolerance."""
    words: str
    """What was measured, against what."""


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """How an engine stands to its baseline over a stretch of time; *refusals* say why it was not compared, and then there are no lines."""

    lines: tuple[BaselineLine, ...]
    refusals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assessment:
    """Everything kvwatch says of one engine after one scrape."""

    verdict: Verdict
    signals: Signals | None
    """``None`` where the scrape failed or nothing can be said yet."""
    alerts: tuple[Alert, ...] = ()
    conditions: Mapping[str, bool] = field(default_factory=dict)
    """By the name of each alert whether its condition holds, or did when it could last be seen; without those that never could be."""
    advice: tuple[Change, ...] = ()
    config: EngineConfig = field(default_factory=EngineConfig)
    """What the engine says of its own cache."""
    state_seconds: Mapping[State, float] = field(default_factory=dict)
    """Seconds this engine has been seen in each state since it is known; every member present once an engine is known."""
    transitions: int = 0
    """State changes since this engine is known."""
    baseline: BaselineComparison | None = None
    """``None`` without a baseline, before the first stretch of time is over, and where the scrape failed."""


@dataclass(frozen=True, slots=True)
class TargetView:
    """The last word on one target: what the exporter serves until the next one replaces it. Immutable."""

    name: str
    url: str
    interval: float
    """Seconds between polls, to judge staleness at collect time."""
    at: float | None
    """Monotonic time of the last finished poll, ``None`` before the first."""
    last_success_at: float | None = None
    last_success_unix: float | None = None
    scrape_seconds: float | None = None
    failure: ScrapeFailure | None = None
    """The last poll's failure; ``None`` when it succeeded."""
    assessments: tuple[Assessment, ...] = ()
    alerts: tuple[Alert, ...] = ()
    """Alerts about the target itself (``TargetDown``)."""
    conditions: Mapping[str, bool] = field(default_factory=dict)
    """Theirs, as in `Assessment.conditions`."""
    sources: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    """What whoever named the target says of it beside its address, such as namespace, pod and node."""


Others = Callable[[], Sequence[TargetView]]
"""Gives the last word on the targets named together with one: asked only where something hangs on it, for there may be hundreds."""


def recommended_max_num_seqs(advice: Sequence[Change]) -> int | None:
    """The number proposed for ``--max-num-seqs``, ``None`` where the advice is about something else."""
    for change in advice:
        if change.lever == "--max-num-seqs" and change.proposed is not None and change.proposed.isdecimal():
            return int(change.proposed)
    return None
