"""A candidate run against its base, line by line. Pure.

A line regresses when it is worse than the base by more than its tolerance. Runs of different loads are not compared, and neither
are runs of too few requests: a percentile of a handful of requests is noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kvwatch.runs.run import FiveLines, Run
from kvwatch.text import number, percent

FEWEST_REQUESTS: Final = 30
"""Finished requests below which a run says nothing: a 95th percentile of fewer rests on one of them."""
LENGTHS_ALIKE: Final = 0.20
"""Mean prompt and output lengths may differ by this share: what two draws of one distribution of some tens of requests differ by."""
LOADS_ALIKE: Final = 0.25
"""Arrival rate or concurrency may differ by this share. One of the two is enough: a slower server under open arrivals holds more
requests, and one under a fixed number of clients finishes fewer."""
LOADS_SHIFTED: Final = 0.10
"""Arrival rate and concurrency may be both higher, or both lower, by this share: no server does that to a load, its clients did. As much as
a latency may differ by."""


class LineOutcome(StrEnum):
    """How a line of the candidate stands to the base's."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    MISSING = "missing"
    """One of the two runs does not have it."""


@dataclass(frozen=True, slots=True)
class ComparedLine:
    """One of the five lines: how it is read, and which way is better."""

    name: str
    title: str
    unit: str
    read: Callable[[FiveLines], float | None]
    higher_is_better: bool
    tolerance: float
    """A share of the base; for `absolute` lines, in the line's own unit."""
    absolute: bool = False

    def shown(self, value: float) -> str:
        """A value of it for a person."""
        if self.unit == "%":
            return percent(value)
        return number(value) if self.unit != "s" else f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


LINES: Final = (
    ComparedLine("throughput", "generated tokens/s", "", lambda lines: lines.generated_tokens_per_second, True, 0.05),  # noqa: FBT003
    ComparedLine("preemption", "preemption ratio", "%", lambda lines: lines.preemption_ratio, False, 0.02, absolute=True),  # noqa: FBT003
    ComparedLine("ttft", "time to first token, P95", "s", lambda lines: lines.time_to_first_token.p95, False, 0.10),  # noqa: FBT003
    ComparedLine("itl", "inter-token latency, P95", "s", lambda lines: lines.inter_token_latency.p95, False, 0.10),  # noqa: FBT003
    ComparedLine("p99", "end-to-end latency, P99", "s", lambda lines: lines.e2e_latency.p99, False, 0.10),  # noqa: FBT003
)
"""The tolerances are about twice what two runs of one configuration of a minute each differ by on a shared machine."""
TOLERANCES: Final[Mapping[str, float]] = MappingProxyType({line.name: line.tolerance for line in LINES})


@dataclass(frozen=True, slots=True)
class LineResult:
    """One line of both runs; *change* is a share of the base, or the difference where the line is absolute."""

    line: ComparedLine
    base: float | None
    candidate: float | None
    change: float | None
    tolerance: float
    outcome: LineOutcome

    @property
    def worse(self) -> bool:
        """Whether it regressed."""
        return self.outcome is LineOutcome.WORSE

    @property
    def change_shown(self) -> str | None:
        """The change for a person."""
        return None if self.change is None else f"{self.change:+.1%}".replace("%", " %")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Five results, or why there are none (*refusals*), and what else differs between the runs (*notes*)."""

    base: Run
    candidate: Run
    results: tuple[LineResult, ...]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Whether any line got worse by more than its tolerance."""
        return any(result.worse for result in self.results)


def compare(
    base: Run, candidate: Run, tolerances: Mapping[str, float] = TOLERANCES, names: tuple[str, str] = ("base", "candidate")
) -> Comparison:
    """Compare two runs; *tolerances* by the lines' names, *names* are what the runs are called."""
    refusals = tuple(_refusals(base, candidate, names))
    if refusals:
        return Comparison(base, candidate, (), refusals, tuple(_notes(base, candidate)))
    asked = min(1.0, max(_load_ratios(base, candidate), default=1.0))
    results = tuple(_result(line, base.lines, candidate.lines, tolerances[line.name], asked) for line in LINES)
    return Comparison(base, candidate, results, (), tuple(_notes(base, candidate)))


def _result(line: ComparedLine, base: FiveLines, candidate: FiveLines, tolerance: float, asked: float) -> LineResult:
    """The line of both runs; *asked* is the share of the base's load that the candidate was given, of which more is not to be had."""
    before, after = line.read(base), line.read(candidate)
    if before is None or after is None or (not line.absolute and before <= 0):
        return LineResult(line, before, after, None, tolerance, LineOutcome.MISSING)
    change = after - before if line.absolute else after / before - 1
    gain = after / (before * asked) - 1 if line.higher_is_better else -change
    outcome = (
        LineOutcome.WORSE
        if gain < -tolerance
        else LineOutcome.BETTER
        if (change if line.higher_is_better else -change) > tolerance
        else LineOutcome.SAME
    )
    return LineResult(line, before, after, change, tolerance, outcome)


def unusable(run: Run, name: str) -> Iterator[str]:
    """Why nothing can be compared with a run."""
    requests = run.conditions.requests
    if requests is None or requests < FEWEST_REQUESTS:
        finished = "an unknown number of" if requests is None else number(requests)
        yield f"the {name} has {finished} finished requests; at least {FEWEST_REQUESTS} are needed"
    if run.conditions.restarts:
        yield f"the server of the {name} was restarted during the run"


def _refusals(base: Run, candidate: Run, names: tuple[str, str]) -> Iterator[str]:
    yield from unusable(base, names[0])
    yield from unusable(candidate, names[1])
    before, after = base.conditions, candidate.conditions
    for what, one, other in (
        ("prompts", before.mean_prompt_tokens, after.mean_prompt_tokens),
        ("outputs", before.mean_output_tokens, after.mean_output_tokens),
    ):
        if one is not None and other is not None and _apart(one, other) > LENGTHS_ALIKE:
            yield f"the loads differ: {what} of {number(one)} and {number(other)} tokens on average"
    if _loads_differ(base, candidate):
        (rate, rate_after), (at_once, at_once_after) = _loads(base, candidate)
        parts = [f"{rate:.2f} and {rate_after:.2f} requests/s"] if rate is not None and rate_after is not None else []
        parts += [f"{number(at_once)} and {number(at_once_after)} at once"] if at_once is not None and at_once_after is not None else []
        yield f"the loads differ: {', '.join(parts)}"


def _loads(base: Run, candidate: Run) -> tuple[tuple[float | None, float | None], ...]:
    """Arrival rate and concurrency of both."""
    before, after = base.conditions, candidate.conditions
    return (before.requests_per_second, after.requests_per_second), (before.concurrency, after.concurrency)


def _load_ratios(base: Run, candidate: Run) -> list[float]:
    """The candidate's arrival rate and concurrency by the base's, as far as both are known."""
    return [after / before for before, after in _loads(base, candidate) if before and after is not None]


def _loads_differ(base: Run, candidate: Run) -> bool:
    ratios = _load_ratios(base, candidate)
    both = len(ratios) > 1
    shifted = both and (max(ratios) < 1 - LOADS_SHIFTED or min(ratios) > 1 + LOADS_SHIFTED)
    return shifted or (bool(ratios) and all(_apart(1.0, ratio) > LOADS_ALIKE for ratio in ratios))


def _apart(one: float, other: float) -> float:
    larger = max(one, other)
    return 0.0 if larger <= 0 else 1 - min(one, other) / larger


def _notes(base: Run, candidate: Run) -> Iterator[str]:
    """What was changed, as far as the runs say."""
    for name in ("model_name", "vllm_version", "engines", "max_num_seqs", "max_num_batched_tokens", "kv_capacity_tokens"):
        before, after = getattr(base.conditions, name), getattr(candidate.conditions, name)
        if before != after and before is not None and after is not None:
            yield f"{name}: {before} -> {after}"
