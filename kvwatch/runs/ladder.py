"""Several runs that differ in one setting: their order, the knee, and where a longer prompt breaks the throughput. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvwatch.runs.run import Run
from kvwatch.text import number, percent


@dataclass(frozen=True, slots=True)
class Axis:
    """What the rungs differ in."""

    name: str
    title: str
    read: Callable[[Run], float | None]


AXES: Final = (
    Axis("max_num_seqs", "--max-num-seqs", lambda run: run.conditions.max_num_seqs),
    Axis("concurrency", "requests at once", lambda run: run.conditions.concurrency),
    Axis("prompt", "prompt tokens", lambda run: run.conditions.mean_prompt_tokens),
)
_SPREAD: Final = 1.25
"""Largest over smallest from which runs are taken to differ in a setting on purpose."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Runs in ascending order of *axis*; *knee* is an index into *rungs*, *verdict* says it in words."""

    axis: Axis
    rungs: tuple[Run, ...]
    knee: int
    verdict: str


def ladder(runs: Sequence[Run], by: str | None = None) -> Ladder:
    """Order *runs* by the setting they differ in (or the one *by* names) and find the knee.

    Raises `ValueError` saying why where they do not differ in anything known, or a run has no throughput.
    """
    axis = _axis(runs, by)
    rungs = tuple(sorted(runs, key=lambda run: axis.read(run) or 0.0))
    missing = [run.source for run in rungs if run.lines.generated_tokens_per_second is None]
    if missing:
        raise ValueError(f"no throughput is known of {', '.join(missing)}")
    knee = _break(rungs) if axis.name == "prompt" else _knee(rungs)
    return Ladder(axis, rungs, knee, _words(axis, rungs, knee))


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


def _throughput(run: Run) -> float:
    return run.lines.generated_tokens_per_second or 0.0


NEAR_THE_BEST: Final = 0.95
"""Share of the best throughput from which a rung counts as reaching it: less than runs of one configuration differ by."""


def _knee(rungs: Sequence[Run]) -> int:
    """Of the rungs near the best throughput the one with the shortest wait for the first token; the lowest where that is not known."""
    best = max(map(_throughput, rungs))
    near = [index for index, run in enumerate(rungs) if _throughput(run) >= NEAR_THE_BEST * best]
    return min(near, key=lambda index: (rungs[index].lines.time_to_first_token.p95 or 0.0, index))


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
