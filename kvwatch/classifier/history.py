"""What is remembered of one engine: its snapshots of the slow window, restarts and gaps taken out.

A restart (any counter went back, or ``_created`` moved), another process, and a gap longer than the slow window across which something
moved all end what was known: the numbers of before say nothing of the engine that runs now. After a restart the counters are counted from
zero, as PromQL's ``increase`` does; after the others they are counted from the first snapshot seen.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Final

from kvwatch.classifier.quiet import Quiet, blind, has_work, moved
from kvwatch.classifier.traffic import Traffic
from kvwatch.model import COUNTERS, HISTOGRAMS, CounterTrait, Histogram, Snapshot, counters_with

_BORN_LATE: Final = counters_with(CounterTrait.BORN_LATE)
_RESET_EVIDENCE: Final = counters_with(CounterTrait.PROVES_RESET)
_TOTALS_READ: Final = ("time_to_first_token", "inter_token_latency")
_CREATED_SLACK: Final = 1.0
"""Seconds by which ``_created`` may differ between scrapes of one process: it is a rounded float."""
SPACING_SECONDS: Final = 15.0
"""A window of minutes needs no more samples than that; a fleet of hundreds of engines needs the memory."""
_MOST_PER_SECOND: Final = {"steps": 5_000.0, "generation_tokens": 500_000.0}
"""What no engine does in a second: the smallest models step about a thousand times. Counters that moved by more are another process, whose
page need not say when it started (several API servers, the Rust front). Higher: a stranger of nearly the same age is not told apart."""
_LATENESS: Final = 10.0
"""Seconds by which a page may be older than the poll that brought it, the usual timeout and more."""


class History:
    """The snapshots of one engine over the last *span* seconds: all of the last *fine* seconds, one in fifteen seconds of before.

    In lists, for they are short: an empty deque takes 760 bytes.

    *max_gap* is the longest time (seconds) between two snapshots that belong together, *stall* the least patience with a silent engine.
    """

    def __init__(self, span: float, fine: float, max_gap: float, stall: float = 10.0) -> None:
        self._span = span
        self._fine = fine
        self._max_gap = max_gap
        self._older: list[Snapshot] = []
        self._snapshots: list[Snapshot] = []
        self.restarts: tuple[float, ...] = ()
        """`at` of the last four restarts."""
        self.highest_running = 0.0
        """The most sequences seen running since the engine started: max_num_seqs is at least that, and no limit below it binds."""
        self._first_seen: float | None = None
        self._with_buckets: float | None = None
        """`at` of the last of the snapshots that keep their buckets, fifteen seconds or a poll apart."""
        self.quiet = Quiet(stall)
        self.traffic = Traffic(span)

    def remember(self, span: float, fine: float, max_gap: float, stall: float) -> None:
        """From now on remember so much, as the arguments of the constructor say."""
        self._span, self._fine, self._max_gap = span, fine, max_gap
        self.traffic.span, self.quiet.stall = span, stall

    @property
    def last(self) -> Snapshot:
        """The newest snapshot; raises `IndexError` on an empty history."""
        return self._snapshots[-1]

    @property
    def seconds_seen(self) -> float:
        """Seconds since the first scrape of this engine after it (or kvwatch) started, or after a gap; 0 when empty."""
        return self._snapshots[-1].at - self._first_seen if self._first_seen is not None else 0.0

    def append(self, snapshot: Snapshot, *, restarted: bool = False, another: bool = False) -> Snapshot | None:
        """Take in the newest snapshot; returns the one before it, or ``None`` where the history begins anew.

        *restarted*: the API server's process has started since; *another*: it is one that ran before. Without either being known,
        counters tell: going back is a restart, and more than an engine can do since the last snapshot is another process.
        """
        previous = self._snapshots[-1] if self._snapshots else None
        gap = previous is not None and snapshot.at - previous.at > self._max_gap and moved(previous, snapshot)
        back = previous is not None and self._went_back(snapshot)
        another = another or (previous is not None and not restarted and _is_too_much(None if back else previous, snapshot, previous.at))
        gap = gap or (previous is not None and another)
        again = previous is not None and not another and (restarted or back)
        if gap or again:
            self._forget(restarted=again or another)
        if again:
            self.restarts = (*self.restarts[-3:], snapshot.at)
        if again or another:
            self.highest_running = 0.0
        if previous is not None and again and not gap:
            self._snapshots.append(_at_zero(snapshot, previous.at))
        if gap or again:
            previous = None
        self._note_births(snapshot)
        self.quiet.note(snapshot)
        self.traffic.note(snapshot)
        if self._first_seen is None:
            self._first_seen = snapshot.at
        self._spare_buckets()
        self._snapshots.append(snapshot)
        self.highest_running = max(self.highest_running, snapshot.running or 0.0)
        self._age(snapshot.at)
        return previous

    def within(self, seconds: float, slack: float) -> list[Snapshot]:
        """The snapshots of the last *seconds*, at most the fine ones (give or take *slack*), and never fewer than the last two."""
        since = self._snapshots[-1].at - seconds - slack
        found = [snapshot for snapshot in self._snapshots if snapshot.at >= since]
        return found if len(found) > 1 else self._snapshots[-2:]

    def spread(self) -> list[Snapshot]:
        """Snapshots over the whole span, fifteen seconds or one poll apart, the newest among them."""
        found = list(self._older)
        for snapshot in self._snapshots:
            if not found or snapshot.at - found[-1].at >= SPACING_SECONDS:
                found.append(snapshot)
        if found[-1] is not self._snapshots[-1]:
            found.append(self._snapshots[-1])
        return found

    def _spare_buckets(self) -> None:
        """Of the newest snapshot, now followed by another, keep buckets only where a long window may begin, as `spread` chooses.

        Quantiles are taken between the beginning of the slow window and the newest snapshot; buckets are most of a snapshot's memory.
        """
        if not self._snapshots:
            return
        newest = self._snapshots[-1]
        if self._with_buckets is not None and newest.at - self._with_buckets < SPACING_SECONDS:
            self._snapshots[-1] = without_buckets(newest)
        else:
            self._with_buckets = newest.at

    def _age(self, now: float) -> None:
        """Let go of what is too old, keeping one snapshot at or before each edge: increases are counted from there."""
        while len(self._snapshots) > 2 and now - self._snapshots[1].at >= self._fine:  # noqa: PLR2004 - two make an increase
            oldest = self._snapshots.pop(0)
            if not self._older or oldest.at - self._older[-1].at >= SPACING_SECONDS:
                self._older.append(oldest)
        while len(self._older) > 1 and now - self._older[1].at >= self._span:
            self._older.pop(0)

    def _went_back(self, snapshot: Snapshot) -> bool:
        """Whether the counters of *snapshot* started again from zero since they were last seen."""
        if _created_later(self._snapshots[-1], snapshot):
            return True
        pairs = ((self._latest(name), getattr(snapshot, name)) for name in _RESET_EVIDENCE)
        return any(old is not None and new is not None and new < old for old, new in pairs)

    def _latest(self, name: str) -> float | None:
        for snapshot in chain(reversed(self._snapshots), reversed(self._older)):
            value: float | None = getattr(snapshot, name)
            if value is not None:
                return value
        return None

    def _note_births(self, snapshot: Snapshot) -> None:
        """A counter that appears was zero before: Ray shows none, and old vLLM no finished request, before there is something to count.

        Only where other counters were there already, or where an idle engine had counted nothing at all: any other page was incomplete.
        """
        if not self._snapshots or (self._snapshots[-1].generation_tokens is None and not _is_unused(self._snapshots[-1])):
            return
        born = {name: 0.0 for name in _BORN_LATE if getattr(snapshot, name) is not None and self._latest(name) is None}
        if born:
            for kept in (self._older, self._snapshots):
                kept[:] = [replace(one, **born) for one in kept]  # type: ignore[arg-type]

    def _forget(self, *, restarted: bool) -> None:
        self._snapshots.clear()
        self._older.clear()
        self._first_seen = self._with_buckets = None
        self.quiet.end(restarted=restarted)
        self.traffic.end(restarted=restarted)


def without_buckets(snapshot: Snapshot) -> Snapshot:
    """A snapshot without its histograms, but for the counts and sums of those that tell how many got tokens (`classifier.batch`)."""
    histograms: dict[str, Histogram | None] = dict.fromkeys(HISTOGRAMS)
    for name in _TOTALS_READ:
        found: Histogram | None = getattr(snapshot, name)
        histograms[name] = None if found is None else found.totals()
    return replace(snapshot, **histograms)  # type: ignore[arg-type]


def _is_too_much(before: Snapshot | None, after: Snapshot, since: float) -> bool:
    """Whether no engine could have done so much since *since*; *before* is ``None`` for one that began at zero then."""
    seconds = after.at - since + _LATENESS
    for name, most in _MOST_PER_SECOND.items():
        now, then = getattr(after, name), 0.0 if before is None else getattr(before, name)
        if now is not None and then is not None and now - then > most * seconds:
            return True
    return False


def _is_unused(snapshot: Snapshot) -> bool:
    """At rest, and no counter is there."""
    return snapshot.running == 0 and not has_work(snapshot) and blind(snapshot, tuple(COUNTERS))


def _created_later(before: Snapshot, after: Snapshot) -> bool:
    return before.created is not None and after.created is not None and after.created > before.created + _CREATED_SLACK


def _at_zero(snapshot: Snapshot, at: float) -> Snapshot:
    """Where the counters of a freshly restarted engine began: zero, with no gauge known."""
    zeros: dict[str, float | Histogram | None] = {name: 0.0 for name in COUNTERS if getattr(snapshot, name) is not None}
    for name in HISTOGRAMS:
        histogram = getattr(snapshot, name)
        if histogram is not None:
            zeros[name] = replace(histogram, counts=[0.0] * len(histogram.counts), sum=0.0)
    return Snapshot(engine=snapshot.engine, at=at, created=snapshot.created, **zeros)  # type: ignore[arg-type]
