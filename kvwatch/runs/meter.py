"""Scrapes become a `Run`: increases of counters and buckets over the whole run, means of gauges. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from kvwatch.capacity.pool import pool_tokens, ranks_beside
from kvwatch.classifier.quantiles import quantiles_between
from kvwatch.classifier.windows import gauge, preemption_ratio
from kvwatch.config.policy import KnownConfig
from kvwatch.model import COUNTERS, HISTOGRAMS, CounterTrait, EngineId, Histogram, Scrape, Snapshot, counters_with
from kvwatch.runs.run import Conditions, FiveLines, Percentiles, Run

_LATENCIES: Final = tuple(field.name for field in fields(FiveLines) if field.name in HISTOGRAMS)
"""Of the histograms those that a run is judged by."""
_RESETS: Final = counters_with(CounterTrait.PROVES_RESET)


@dataclass(slots=True)
class _EngineTotal:
    """What one engine counted since the run began."""

    last: Snapshot
    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    running: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    restarts: int = 0
    capacity: int | None = None

    def add(self, snapshot: Snapshot) -> None:
        """Count on: from the last scrape, or from zero where the engine has started again in between."""
        before = self.last
        again = any(_fell(getattr(before, name), getattr(snapshot, name)) for name in _RESETS)
        self.restarts += again
        for name in COUNTERS:
            new, old = getattr(snapshot, name), 0.0 if again else getattr(before, name)
            if new is not None and old is not None and new >= old:
                self.counters[name] = self.counters.get(name, 0.0) + new - old
        for name in HISTOGRAMS:
            self._add_histogram(name, None if again else getattr(before, name), getattr(snapshot, name), fresh=again)
        self.last = snapshot

    def _add_histogram(self, name: str, old: Histogram | None, new: Histogram | None, *, fresh: bool) -> None:
        if new is None or (old is None and not fresh) or (old is not None and old.bounds != new.bounds):
            return
        counts = [b - a for a, b in zip(old.counts, new.counts, strict=True)] if old is not None else list(new.counts)
        self.histograms[name] = _sum(self.histograms.get(name), Histogram(new.bounds, counts, None))


class Meter:
    """Measures a run from its scrapes, in the order of time. *known* is what ``/metrics`` does not say."""

    def __init__(self, known: KnownConfig) -> None:
        self._known = known
        self._engines: dict[EngineId, _EngineTotal] = {}
        self._first_at: float | None = None
        self._last_at = 0.0

    @property
    def seconds(self) -> float:
        """Time between the first and the last scrape."""
        return 0.0 if self._first_at is None else self._last_at - self._first_at

    def add(self, scrape: Scrape) -> None:
        """Take in one more scrape."""
        if self._first_at is None:
            self._first_at = scrape.at
        self._last_at = scrape.at
        for snapshot in scrape.snapshots:
            total = self._engines.get(snapshot.engine)
            if total is None:
                total = self._engines[snapshot.engine] = _EngineTotal(snapshot)
            else:
                total.add(snapshot)
            total.capacity = pool_tokens(snapshot.config, ranks_beside(snapshot.engine, scrape), self._known)
            if snapshot.running is not None:
                total.running.append(snapshot.running)
            if snapshot.waiting is not None:
                total.waiting.append(snapshot.waiting)

    def run(self, source: str) -> Run:
        """The run so far. Raises `ValueError` where there is nothing to measure."""
        totals = list(self._engines.values())
        if not totals or self.seconds <= 0:
            raise ValueError("fewer than two scrapes of a vLLM engine: nothing can be measured")
        running, waiting = (_sum_of_means([getattr(total, name) for total in totals]) for name in ("running", "waiting"))
        finished = _total(totals, "finished")
        lines = FiveLines(
            generated_tokens_per_second=self._rate(_total(totals, "generation_tokens")),
            total_tokens_per_second=self._rate(_add(_total(totals, "generation_tokens"), _total(totals, "prompt_tokens"))),
            preemption_ratio=preemption_ratio(_total(totals, "preemptions"), finished, gauge([running])),
            **{name: _percentiles(totals, name) for name in _LATENCIES},
        )
        return Run(source, self.seconds, lines, self._conditions(totals, finished, running, waiting))

    def _conditions(self, totals: list[_EngineTotal], finished: float | None, running: float | None, waiting: float | None) -> Conditions:
        return Conditions(
            model_name=", ".join(sorted({engine.model_name for engine in self._engines})),
            vllm_version=self._known.vllm_version,
            engines=len(totals),
            max_num_seqs=self._known.max_num_seqs,
            max_num_batched_tokens=self._known.max_num_batched_tokens,
            kv_capacity_tokens=min((total.capacity for total in totals if total.capacity is not None), default=None),
            requests=finished,
            requests_per_second=self._rate(finished),
            concurrency=_add(running, waiting),
            mean_running=running,
            mean_waiting=waiting,
            mean_prompt_tokens=_ratio(_total(totals, "prompt_length_sum"), _total(totals, "prompt_length_count")),
            mean_output_tokens=_ratio(_total(totals, "generation_length_sum"), _total(totals, "generation_length_count")),
            restarts=max(total.restarts for total in totals),
        )

    def _rate(self, amount: float | None) -> float | None:
        return None if amount is None else amount / self.seconds


def _fell(old: float | None, new: float | None) -> bool:
    return old is not None and new is not None and new < old


def _add(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _ratio(amount: float | None, count: float | None) -> float | None:
    return amount / count if amount is not None and count else None


def _total(totals: list[_EngineTotal], name: str) -> float | None:
    """The sum over the engines that counted it; ``None`` where none did."""
    known = [total.counters[name] for total in totals if name in total.counters]
    return sum(known) if known else None


def _sum_of_means(samples: list[list[float]]) -> float | None:
    known = [sum(own) / len(own) for own in samples if own]
    return sum(known) if known else None


def _sum(one: Histogram | None, other: Histogram) -> Histogram:
    """Two increases of one histogram added; the later one alone where the edges have changed (another version was started)."""
    if one is None or one.bounds != other.bounds:
        return other
    return Histogram(one.bounds, [a + b for a, b in zip(one.counts, other.counts, strict=True)], None)


def _percentiles(totals: list[_EngineTotal], name: str) -> Percentiles:
    """Percentiles of all engines together."""
    together: Histogram | None = None
    for total in totals:
        if name in total.histograms:
            together = _sum(together, total.histograms[name])
    if together is None:
        return Percentiles()
    found = quantiles_between(Histogram(together.bounds, [0.0] * len(together.counts), None), together)
    return Percentiles() if found is None else Percentiles(found.p50, found.p95, found.p99)
