"""The rows of the overview: one engine each, in the order a reader asks for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvwatch.exporter.freshness import as_of
from kvwatch.exporter.web.condition import ORDER, Condition, condition_of
from kvwatch.model import Assessment, Cause, Severity, Signals, State, TargetView, Verdict

_CAUSE_ORDER: Final = tuple(Cause)


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine, or a target none of whose engines is known yet."""

    id: str
    """Stable and safe in a URL, whatever the engine calls itself."""
    view: TargetView
    """As it may be shown, see `freshness.as_of`."""
    assessment: Assessment

    @property
    def verdict(self) -> Verdict:
        """What kvwatch says of it."""
        return self.assessment.verdict

    @property
    def model_name(self) -> str:
        """Empty while no engine is known."""
        return "" if self.verdict.engine is None else self.verdict.engine.model_name

    @property
    def place(self) -> str:
        """Where it runs, as its operator calls it: namespace and pod where they are known, else the target's name."""
        pod, namespace = self.view.labels.get("pod", ""), self.view.labels.get("namespace", "")
        return f"{namespace}/{pod}" if namespace and pod else pod or self.view.name

    @property
    def engine(self) -> str:
        """Empty while no engine is known."""
        return "" if self.verdict.engine is None else self.verdict.engine.engine

    @property
    def condition(self) -> Condition:
        """How urgent it is."""
        return condition_of(self.verdict)

    @property
    def pages(self) -> bool:
        """Whether an alert fires that is worth waking someone."""
        return any(alert.severity is Severity.CRITICAL for alert in (*self.view.alerts, *self.assessment.alerts))

    @property
    def cause(self) -> str:
        """The cause's short name."""
        return self.verdict.cause.short_name


def rows_of(views: Sequence[TargetView], now: float) -> Iterator[EngineRow]:
    """A row for every engine, and for every target without one, as they may be shown at monotonic time ``now``."""
    for view in views:
        shown = as_of(view, now)
        for assessment in shown.assessments or (_nothing_yet(shown, now),):
            yield EngineRow(_identity(view, assessment.verdict), shown, assessment)


def _nothing_yet(view: TargetView, now: float) -> Assessment:
    cause, evidence = (Cause.WARMING_UP, "no poll has finished yet") if view.at is None else (Cause.UNREACHABLE, "no engine is known")
    return Assessment(verdict=Verdict(None, State.UNKNOWN, cause, (evidence,), since=view.at or now), signals=None)


def _identity(view: TargetView, verdict: Verdict) -> str:
    parts = [view.name] if verdict.engine is None else [view.name, verdict.engine.model_name, verdict.engine.engine]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the overview that can be sorted by."""

    key: str
    title: str
    rank: Callable[[EngineRow], tuple[object, ...] | None]
    """Ascending; ``None`` sorts last either way."""
    numeric: bool = False
    wide: bool = False
    """Left out on narrow screens."""


def _natural(name: str) -> str:
    """A name so that ``vllm-9`` comes before ``vllm-10``."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(12), name)


def _number(read: Callable[[Signals], float | None]) -> Callable[[EngineRow], tuple[object, ...] | None]:
    """Highest first: that is where trouble is."""

    def rank(row: EngineRow) -> tuple[object, ...] | None:
        value = None if row.assessment.signals is None else read(row.assessment.signals)
        return None if value is None else (-value,)

    return rank


COLUMNS: Final = (
    Column("state", "State", lambda row: (ORDER.index(row.condition), not row.pages, _CAUSE_ORDER.index(row.verdict.cause))),
    Column("engine", "Engine", lambda row: (_natural(row.model_name), _natural(row.view.name), _natural(row.engine))),
    Column("target", "Target", lambda row: (_natural(row.view.name), _natural(row.model_name), _natural(row.engine)), wide=True),
    Column("since", "Since", lambda row: (-row.verdict.since,), wide=True),
    Column("kv", "KV", _number(lambda signals: signals.kv_usage), numeric=True),
    Column("running", "Running", _number(lambda signals: signals.running), numeric=True, wide=True),
    Column("waiting", "Waiting", _number(lambda signals: signals.waiting), numeric=True),
    Column("preemption", "Preempted", _number(lambda signals: signals.slow.preemption_ratio), numeric=True, wide=True),
    Column("tokens", "Tokens/s", _number(lambda signals: signals.generation_tokens_per_second), numeric=True, wide=True),
    Column(
        "p99", "E2E P99", _number(lambda signals: None if signals.e2e_latency is None else signals.e2e_latency.p99), numeric=True, wide=True
    ),
)
_BY_KEY: Final = {column.key: column for column in COLUMNS}


def ordered(rows: Sequence[EngineRow], sort: str) -> tuple[EngineRow, ...]:
    """Rows by the column ``sort`` names, the other way round with a leading ``-``; by state for a name nobody knows.

    Rows that are equal in it stand by state and then by name.
    """
    column = _BY_KEY.get(sort.removeprefix("-"), COLUMNS[0])
    by_state, by_name = COLUMNS[0].rank, COLUMNS[1].rank
    standing = sorted(rows, key=lambda row: (by_state(row), by_name(row)))
    known = [row for row in standing if column.rank(row) is not None]
    unknown = [row for row in standing if column.rank(row) is None]
    return (*sorted(known, key=column.rank, reverse=sort.startswith("-")), *unknown)  # type: ignore[arg-type]  # None is sorted out above
