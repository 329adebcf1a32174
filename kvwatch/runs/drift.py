"""Whether the engines of a target still do what a run measured before, the baseline, did. Pure but for reading it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvwatch.config.policy import KnownConfig
from kvwatch.errors import ConfigError, UsageError
from kvwatch.model import BaselineComparison, BaselineLine, EngineId, Scrape, Snapshot
from kvwatch.runs.compare import TOLERANCES, LineResult, compare, unusable
from kvwatch.runs.formats import read_runs
from kvwatch.runs.meter import Meter
from kvwatch.runs.run import Run

COMPARED_SECONDS: Final = 600.0
"""How much is measured for one comparison. Longer: steadier percentiles, and a load that wanders out of likeness in between."""
_CHANCES: Final = 2.0
"""Standard errors that a line may be worse by beyond its tolerance: real traffic is another draw every time. Higher: fewer false alerts,
and a regression of an engine with little traffic must be larger to be seen. Twelve simulated hours of unchanged traffic, compared without,
were worse in one of seven comparisons."""
_NAMES: Final = ("baseline", "present run")


def read_baseline(path: Path | None) -> Run | None:
    """The run that engines are compared with, per engine; ``None`` without a file. Raises `ConfigError` in one line."""
    if path is None:
        return None
    try:
        runs = read_runs(path)
    except UsageError as error:
        raise ConfigError([f"baseline {error}"]) from error
    if len(runs) != 1 or runs[0].conditions.engines is None:
        # A client's latencies hold its network, and its preemptions are not known.
        raise ConfigError([f"baseline {path}: not written by kvwatch snapshot, which measures as kvwatch does here"])
    if wrong := tuple(unusable(runs[0], _NAMES[0])):
        raise ConfigError([f"baseline {path}: {'; '.join(wrong)}"])
    return of_one_engine(runs[0])


def of_one_engine(run: Run) -> Run:
    """What one engine had of a run of several: an equal part of what they did together."""
    engines, lines, conditions = run.conditions.engines or 1, run.lines, run.conditions
    return replace(
        run,
        lines=replace(
            lines,
            generated_tokens_per_second=_part(lines.generated_tokens_per_second, engines),
            total_tokens_per_second=_part(lines.total_tokens_per_second, engines),
        ),
        conditions=replace(
            conditions,
            engines=1,
            requests=_part(conditions.requests, engines),
            requests_per_second=_part(conditions.requests_per_second, engines),
            concurrency=_part(conditions.concurrency, engines),
            mean_running=_part(conditions.mean_running, engines),
            mean_waiting=_part(conditions.mean_waiting, engines),
        ),
    )


def _part(amount: float | None, parts: int) -> float | None:
    return None if amount is None else amount / parts


class Drift:
    """Compares the engines of one target with *baseline*, or does nothing without one."""

    def __init__(self, baseline: Run | None) -> None:
        self._baseline = baseline
        self._engines: dict[EngineId, _EngineDrift] = {}

    def reconfigure(self, baseline: Run | None) -> None:
        """Compare with another baseline from now on."""
        if baseline != self._baseline:
            self._baseline, self._engines = baseline, {}

    def observe(self, scrape: Scrape) -> Mapping[EngineId | None, BaselineComparison]:
        """What the last comparison of each engine found, the engines that were never compared left out."""
        baseline = self._baseline
        if baseline is None:
            return {}
        before = self._engines
        self._engines = {one.engine: before.get(one.engine) or _EngineDrift(baseline) for one in scrape.snapshots}
        for snapshot in scrape.snapshots:
            self._engines[snapshot.engine].observe(snapshot, scrape)
        return {engine: drift.found for engine, drift in self._engines.items() if drift.found is not None}


class _EngineDrift:
    def __init__(self, baseline: Run) -> None:
        self._baseline = baseline
        self._meter = Meter(KnownConfig())
        self.found: BaselineComparison | None = None

    def observe(self, snapshot: Snapshot, scrape: Scrape) -> None:
        alone = replace(scrape, snapshots=(snapshot,))
        self._meter.add(alone)
        if self._meter.seconds < COMPARED_SECONDS:
            return
        self.found = _compared(self._baseline, self._meter.run(_NAMES[1]))
        self._meter = Meter(KnownConfig())
        self._meter.add(alone)


def _compared(baseline: Run, now: Run) -> BaselineComparison:
    model, other = baseline.conditions.model_name, now.conditions.model_name
    if model != other:
        return BaselineComparison((), (f"the baseline is of {model}, and this is {other}",))
    found = compare(baseline, now, tolerances_for(now.conditions.requests or 0.0), _NAMES)
    lines = (
        BaselineLine(result.line.name, result.change, result.worse, _words(result)) for result in found.results if result.change is not None
    )
    return BaselineComparison(tuple(lines), found.refusals)


def tolerances_for(requests: float) -> Mapping[str, float]:
    """The tolerances of a comparison of so many requests: the usual ones, and what chance adds.

    Standard errors: of a sum of *n* like amounts ``1 / sqrt(n)``, of a share at most ``1 / (2 sqrt(n))``, of the quantile *q* of waiting
    times with an exponential tail ``1 / (sqrt(n (1 - q)) ln(1 / (1 - q)))``, all but the share relative.
    """
    root = math.sqrt(max(requests, 1.0))

    def quantile(q: float) -> float:
        return 1 / (root * math.sqrt(1 - q) * math.log(1 / (1 - q)))

    errors = {"throughput": 1 / root, "preemption": 0.5 / root, "ttft": quantile(0.95), "itl": quantile(0.95), "p99": quantile(0.99)}
    return {name: tolerance + _CHANCES * errors[name] for name, tolerance in TOLERANCES.items()}


def _words(result: LineResult) -> str:
    shown = [result.line.shown(value) for value in (result.candidate, result.base) if value is not None]
    return f"{result.line.title} {' against '.join(shown)} ({result.change_shown})"
