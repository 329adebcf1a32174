"""Recordings played through the code that replays them, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvwatch.assess import Judge
from kvwatch.incident.recording import Decimator, Entry
from kvwatch.incident.replay import ReplayRow, rows_of


def decimated(entries: Iterable[Entry], interval: float) -> Iterator[Entry]:
    """One entry in *interval* seconds, as a daemon of that interval would have seen them."""
    decimator = Decimator(interval)
    return (entry for entry in entries if decimator.wants(entry.t))


def replay(entries: Iterable[Entry], target: str, judge: Judge) -> Iterator[ReplayRow]:
    """What *judge* says, entry by entry; the recording's own time is the only clock."""
    for entry in entries:
        yield from rows_of(entry, target, judge)
