"""Several runs that differ in one setting: their order, the knee, and where a longer prompt breaks the throughput. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from kvwatch.runs.run import FiveLines, Percentiles, Run
from kvwatch.text import number, percent


@dataclass(frozen=True, slots=True)
class Axis:
    """What the rungs differ in."""

    name: str
    title: str
    read: Callable[[Run], float | None]
    alike: float
    """Up to this times the smallest of them runs are of one rung: 1 for what is declared, a little more for what is measured."""


AXES: Final = (
    Axis("max_num_seqs", "--max-num-seqs", lambda run: run.conditions.max_num_seqs, 1.0),
    Axis("concurrency", "requests at once", lambda run: run.conditions.concurrency, 1.05),
    Axis("prompt", "prompt tokens", lambda run: run.conditions.mean_prompt_tokens, 1.05),
)
_SPREAD: Final = 1.25
"""Largest over smallest from which runs are taken to differ in a setting on purpose."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """A run a rung, in ascending order of *axis*; *knee* is an index into *rungs*, *verdict* says it in words.

    Several runs of one rung are one here, with the mean of each line.
    """

    axis: Axis
    rungs: tuple[Run, ...]
    knee: int
    verdict: str


def ladder(runs: Sequence[Run], by: str | None = None) -> Ladder:
    """Order *runs* by the setting they differ in (or the one *by* names) and find the knee.

    Raises `ValueError` saying why where they do not differ in anything known, or a run has no throughput.
    """
    axis = _axis(runs, by)
    missing = [run.source for run in runs if run.lines.generated_tokens_per_second is None]
    if missing:
        raise ValueError(f"no throughput is known of {', '.join(missing)}")
    groups = _groups(axis, runs)
    rungs = tuple(map(_mean_run, groups))
    knee = _break(rungs) if axis.name == "prompt" else _knee(rungs)
    return Ladder(axis, rungs, knee, _words(axis, rungs, knee) + _repeats(groups))


def _axis(runs: Sequence[Run], by: str | None) -> Axis:
    for axis in AXES:
        values = [axis.read(run) for run in runs]
        if by == axis.name:
            if None in values:
                raise ValueError(f"not every run says its {axis.title}")
            return axis
        known = [value for value in values if value is not None]
        if by is None and len(known) == len(runs) and min(known) > 0 and max(known) / min(known) >= _SPREAD:
            return axis
    raise ValueError(
        "the runs differ in neither --max-num-seqs, concurrency nor prompt length as far as they say: give --max-num-seqs at snapshot"
    )


def _groups(axis: Axis, runs: Sequence[Run]) -> list[list[Run]]:
    """The runs of each rung, in ascending order."""
    groups: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: axis.read(run) or 0.0):
        if groups and (axis.read(run) or 0.0) <= axis.alike * (axis.read(groups[-1][0]) or 0.0):
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _mean_run(runs: Sequence[Run]) -> Run:
    """One run with the mean of each line, absent where one of them lacks it; the conditions are the first one's."""

    def mean(read: Callable[[FiveLines], float | None]) -> float | None:
        values = [value for run in runs if (value := read(run.lines)) is not None]
        return fmean(values) if len(values) == len(runs) else None

    def latency(read: Callable[[FiveLines], Percentiles]) -> Percentiles:
        return Percentiles(mean(lambda line: read(line).p50), mean(lambda line: read(line).p95), mean(lambda line: read(line).p99))

    lines = FiveLines(
        mean(lambda line: line.generated_tokens_per_second),
        mean(lambda line: line.total_tokens_per_second),
        mean(lambda line: line.preemption_ratio),
        latency(lambda line: line.time_to_first_token),
        latency(lambda line: line.inter_token_latency),
        latency(lambda line: line.e2e_latency),
    )
    return replace(runs[0], source=" + ".join(run.source for run in runs), seconds=sum(run.seconds for run in runs), lines=lines)


def _repeats(groups: Sequence[Sequence[Run]]) -> str:
    """How far runs of one rung lie apart, which is what two rungs have to differ by at least."""
    apart = [max(rates) / min(rates) - 1 for group in groups if len(group) > 1 and min(rates := [_throughput(run) for run in group]) > 0]
    return f"; runs of one rung differ by up to {percent(max(apart))} in throughput" if apart else ""


def _throughput(run: Run) -> float:
    return run.lines.generated_tokens_per_second or 0.0


NEAR_THE_BEST: Final = 0.95
"""Share of the best throughput from which a rung counts as reaching it: less than runs of one configuration differ by."""


NEAR_THE_SHORTEST: Final = 1.10
"""Times the shortest wait for the first token up to which a rung counts as having it: what `compare` tolerates by default."""


def _knee(rungs: Sequence[Run]) -> int:
    """Of the rungs near the best throughput the lowest with nearly the shortest wait for the first token.

    The lowest, because more requests at once that neither finish more nor start sooner only take memory: beyond it vLLM preempts.
    """
    best = max(map(_throughput, rungs))
    near = [index for index, run in enumerate(rungs) if _throughput(run) >= NEAR_THE_BEST * best]
    waits = {index: rungs[index].lines.time_to_first_token.p95 or 0.0 for index in near}
    return next(index for index in near if waits[index] <= NEAR_THE_SHORTEST * min(waits.values()))


BROKEN: Final = 0.90
"""Share of the throughput so far below which a longer prompt has broken it."""


def _break(rungs: Sequence[Run]) -> int:
    """The last rung before work per second falls; prompt tokens are work too, so all tokens count."""
    best = 0.0
    for index, run in enumerate(rungs):
        work = run.lines.total_tokens_per_second or _throughput(run)
        if work < BROKEN * best:
            return index - 1
        best = max(best, work)
    return len(rungs) - 1


def _words(axis: Axis, rungs: Sequence[Run], knee: int) -> str:
    value = number(axis.read(rungs[knee]) or 0.0)
    if axis.name == "prompt":
        if knee == len(rungs) - 1:
            return f"throughput holds up to the longest prompts measured, {value} tokens"
        return f"throughput breaks between prompts of {value} and {number(axis.read(rungs[knee + 1]) or 0.0)} tokens"
    run = rungs[knee]
    parts = [f"{number(_throughput(run))} generated tokens/s"]
    if run.lines.time_to_first_token.p95 is not None:
        parts.append(f"time to first token {run.lines.time_to_first_token.p95:.2f} s at P95")
    if run.lines.preemption_ratio is not None:
        parts.append(f"{percent(run.lines.preemption_ratio)} preempted")
    return f"the knee is at {axis.title} {value}: {', '.join(parts)}"
