"""What clients ask of the simulated server: open loops, closed loops, or arrivals read from a file."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from kvwatch.errors import UsageError


class Lengths(Protocol):
    """A distribution of token counts; bad numbers raise `ValueError` where it is made."""

    def draw(self, random: Random) -> int:
        """One length, at least 1."""
        ...


def _check(low: int, high: int) -> None:
    if not 1 <= low <= high:
        raise ValueError(f"lengths from {low} to {high}")


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same length."""

    tokens: int

    def __post_init__(self) -> None:
        _check(self.tokens, self.tokens)

    def draw(self, random: Random) -> int:  # noqa: ARG002 - the same signature as its siblings
        """That length."""
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any whole number from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check(self.low, self.high)

    def draw(self, random: Random) -> int:
        """One length."""
        return random.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Lognormal with that median and sigma of the logarithm, cut to ``low..high``: what chat traffic looks like."""

    median: float
    sigma: float
    low: int
    high: int

    def __post_init__(self) -> None:
        _check(self.low, self.high)
        if not (self.median > 0 and self.sigma >= 0):
            raise ValueError(f"a lognormal of median {self.median} and sigma {self.sigma}")

    def draw(self, random: Random) -> int:
        """One length."""
        return min(self.high, max(self.low, round(random.lognormvariate(math.log(self.median), self.sigma))))


def parse_lengths(spec: object) -> Lengths:
    """Lengths as recordings write them (``["logn", 250, 0.6, 16, 1500]``) or as flags do (``logn:250,0.6,16,1500``, or just ``300``).

    Raises `UsageError` naming what was written.
    """
    if isinstance(spec, str):
        kind, _, rest = spec.rpartition(":")
        parts: list[object] = [kind or "fixed", *rest.split(",")]
    elif isinstance(spec, Sequence):
        parts = list(spec)
    else:
        parts = []
    try:
        return _lengths(str(parts[0]) if parts else "", [float(str(part)) for part in parts[1:]])
    except (ValueError, OverflowError):
        raise UsageError(
            f"{spec!r} are no lengths: write N, fixed:N, uniform:LOW,HIGH or logn:MEDIAN,SIGMA,LOW,HIGH in tokens, LOW at least 1"
        ) from None


def _lengths(kind: str, numbers: Sequence[float]) -> Lengths:
    """Raises `ValueError` for what is no distribution."""
    match kind, len(numbers):
        case "fixed", 1:
            return Fixed(int(numbers[0]))
        case "uniform", 2:
            return Uniform(int(numbers[0]), int(numbers[1]))
        case "logn", 4:
            return LogNormal(numbers[0], numbers[1], int(numbers[2]), int(numbers[3]))
        case _:
            raise ValueError(kind)


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests arrive whether or not earlier ones are done: Poisson at `rate` a second, `burst` at a time."""

    rate: float
    prompt: Lengths = Fixed(300)
    output: Lengths = Fixed(200)
    burst: int = 1
    shared_prefix: int = 0


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` clients that each send the next request when the last one is answered."""

    concurrency: int
    prompt: Lengths = Fixed(300)
    output: Lengths = Fixed(200)
    shared_prefix: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace: seconds after the start of the load, and its lengths in tokens."""

    at: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests at given times, in order."""

    rows: tuple[Arrival, ...]


Load = OpenLoop | ClosedLoop | Arrivals
IDLE = OpenLoop(rate=0.0)


def read_arrivals(path: Path) -> Arrivals:
    """Arrivals of a CSV file ``timestamp,prompt_tokens,output_tokens``: seconds from any origin, a header line allowed.

    Raises `UsageError` naming every bad line, or that the file cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return parse_arrivals(csv.reader(file), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read arrivals from {path}: {error}") from None


def parse_arrivals(rows: Iterable[Sequence[str]], *, source: str) -> Arrivals:
    """Arrivals of CSV rows; see `read_arrivals`."""
    arrivals = []
    faults = []
    for line, row in enumerate(rows, start=1):
        if not any(cell.strip() for cell in row) or (line == 1 and _is_header(row)):
            continue
        try:
            arrivals.append(_arrival(row))
        except ValueError as error:
            faults.append(f"line {line}: {error}")
    if faults:
        more = f"; and {len(faults) - 5} more bad lines" if len(faults) > 5 else ""  # noqa: PLR2004 - enough to see the pattern
        raise UsageError(f"{source}: " + "; ".join(faults[:5]) + more)
    if not arrivals:
        raise UsageError(f"{source}: no arrivals in it")
    arrivals.sort(key=lambda arrival: arrival.at)
    origin = arrivals[0].at
    return Arrivals(tuple(Arrival(row.at - origin, row.prompt, row.output) for row in arrivals))


def _is_header(row: Sequence[str]) -> bool:
    return all(cell.strip() and not _is_number(cell) for cell in row)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _arrival(row: Sequence[str]) -> Arrival:
    """One row; raises `ValueError` saying what is wrong with it."""
    if len(row) != 3:  # noqa: PLR2004 - the three columns
        raise ValueError(f"{len(row)} columns instead of timestamp,prompt_tokens,output_tokens")
    try:
        at, prompt, output = float(row[0]), int(row[1]), int(row[2])
    except ValueError:
        raise ValueError(f"{','.join(row)!r} is not a time in seconds and two whole numbers of tokens") from None
    if not math.isfinite(at):
        raise ValueError(f"{row[0]!r} is not a time")
    if prompt < 1 or output < 1:
        raise ValueError(f"{prompt} prompt and {output} output tokens: both must be at least 1")
    return Arrival(at, prompt, output)
