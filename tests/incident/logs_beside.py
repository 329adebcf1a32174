"""Servers' own logs beside recordings of their /metrics: ``python tests/incident/logs_beside.py RECORDING|LOG …``.

A log belongs to a recording when it was written meanwhile and its gauges agree with those that were scraped. Both are judged with what the
log's start says of the server. A stats line counts once the recording has said the same for `SETTLED` seconds. Prints a row for each pair,
all of them together, and what differed how often.
"""

from __future__ import annotations

import argparse
import bisect
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvwatch.clock import SystemClock
from kvwatch.config.policy import KnownConfig
from kvwatch.config.settings import Settings
from kvwatch.errors import RecordingError
from kvwatch.incident.replay import Replayer, ReplayRow
from kvwatch.incident.sources import open_source

SETTLED: Final = 30.0
"""The fast window: what has held so long, any source of the same numbers should have seen."""
NEAR: Final = 1.5
"""A gauge of a stats line is one of the scrapes so many seconds around it."""
ALIKE: Final = 0.6
FEWEST: Final = 5


@dataclass
class Pair:
    """A log beside a recording."""

    recording: str
    log: str
    lines: int = 0
    same_state: int = 0
    same_cause: int = 0
    different: Counter[str] = field(default_factory=Counter)


def rows_of_file(path: Path, known: KnownConfig | None = None) -> tuple[list[ReplayRow], KnownConfig]:
    """What a replay says, and what the source says of its server. Raises `RecordingError`."""
    with open_source(path, lambda _: None, now=SystemClock().unix()) as source:
        replayer = Replayer(Settings(), known or source.known, None, lambda _: None, lambda *_: None)
        return list(replayer.rows((source.target, entry) for entry in source.entries)), source.known


def beside(recorded: Sequence[ReplayRow], logged: Sequence[ReplayRow], pair: Pair) -> None:
    """Compare the stats lines of the recording's time with what it says of the same moment."""
    times = [row.t for row in recorded]
    for row in logged:
        place = bisect.bisect_right(times, row.t) - 1
        if place < 0 or row.t > times[-1]:
            continue
        said = recorded[place].assessment.verdict
        before = recorded[bisect.bisect_left(times, row.t - SETTLED) : place + 1]
        if row.t - times[0] < SETTLED or any(one.assessment.verdict.state is not said.state for one in before):
            continue
        verdict = row.assessment.verdict
        pair.lines += 1
        pair.same_state += verdict.state is said.state
        pair.same_cause += verdict.cause is said.cause
        if verdict.state is not said.state:
            pair.different[f"{said.cause} is {verdict.cause} in the log"] += 1


def belongs(recorded: Sequence[ReplayRow], logged: Sequence[ReplayRow]) -> bool:
    """Whether most stats lines of the time have gauges that were scraped then."""
    times = [row.t for row in recorded]
    within = [row for row in logged if times[0] <= row.t <= times[-1] and row.assessment.signals is not None]
    found = 0
    for row in within:
        near = recorded[bisect.bisect_left(times, row.t - NEAR) : bisect.bisect_right(times, row.t + NEAR)]
        found += _gauges(row) in {_gauges(one) for one in near}
    return len(within) >= FEWEST and found >= ALIKE * len(within)


def _gauges(row: ReplayRow) -> tuple[float | None, float | None]:
    signals = row.assessment.signals
    return (None, None) if signals is None else (signals.running, signals.waiting)


def pairs(paths: Sequence[Path]) -> Iterator[Pair]:
    """Every recording with every log that belongs to it."""
    recordings = {path: rows_of_file(path)[0] for path in paths if ".jsonl" in path.suffixes}
    for log in (path for path in paths if ".jsonl" not in path.suffixes):
        try:
            logged, known = rows_of_file(log)
        except RecordingError as error:
            sys.stderr.write(f"{error}\n")
            continue
        for path, recorded in recordings.items():
            if recorded and belongs(recorded, logged):
                pair = Pair(path.name.partition(".")[0], log.stem)
                beside(rows_of_file(path, known)[0], logged, pair)
                yield pair


def main() -> int:
    """Print the table; 1 where fewer than 90 % of the stats lines say the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("paths", nargs="+", type=Path)
    found = list(pairs(parser.parse_args().paths))
    everything = _all(found)
    sys.stdout.write("| recording | log | lines | same state | same cause |\n|---|---|---|---|---|\n")
    for pair in (*found, everything):
        if pair.lines:
            state, cause = pair.same_state / pair.lines, pair.same_cause / pair.lines
            sys.stdout.write(f"| {pair.recording} | {pair.log} | {pair.lines} | {state:.1%} | {cause:.1%} |\n")
    for kind, times in sum((pair.different for pair in found), Counter[str]()).most_common():
        sys.stdout.write(f"{times} x {kind}\n")
    return 0 if everything.same_state >= 0.9 * everything.lines else 1


def _all(found: Sequence[Pair]) -> Pair:
    return Pair("all", "", *(sum(getattr(one, name) for one in found) for name in ("lines", "same_state", "same_cause")))


if __name__ == "__main__":
    sys.exit(main())
