"""Whether an advised ``--max-num-seqs`` was set: seen in how many run after the server has started again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvwatch.model import Change, Signals, recommended_max_num_seqs


@dataclass(frozen=True, slots=True)
class Followed:
    """A limit on running sequences, before and after it was changed as advised, and what became of the preemptions."""

    before: int
    """The most that ran before."""
    after: int
    """The most that run now, while others wait."""
    preempted_before: float | None
    """Share of the requests leaving the batch that were preempted (0..1), over the slow window when the advice was given."""
    preempted_now: float | None

    @property
    def lowered(self) -> bool:
        """Fewer run than before."""
        return self.after < self.before

    def __str__(self) -> str:
        shares = (self.preempted_before, self.preempted_now)
        preempted = "" if None in shares else ", preempted {:.0%} → {:.0%} of the requests leaving the batch".format(*shares)
        return f"followed: --max-num-seqs {self.before} → {self.after}{preempted}"


@dataclass(frozen=True, slots=True)
class _Advised:
    number: int
    before: int
    preempted: float | None


_QUEUED_SECONDS: Final = 30.0
"""How long requests must have waited in every scrape before the most that run is taken for the limit: one fast window."""
_NEAR: Final = 0.25
"""Share by which the limit seen may differ from the one advised; a hand rounds to 8, 16 or 24."""


class Following:
    """Remembers of one engine what was advised and how many ran, and says when the limit has become the one advised."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._advised: _Advised | None = None
        self._trial: _Advised | None = None
        self._most = 0.0
        self.followed: Followed | None = None

    def observe(self, signals: Signals | None, started: float | None) -> None:
        """Take in what an engine does whose process started at *started* (Unix seconds; ``None`` where its page does not say)."""
        if started is not None and self._started is not None and started > self._started + 1:
            self._trial, self._advised, self._most, self.followed = self._advised or self._trial, None, 0.0, None
        self._started = started if started is not None else self._started
        window = None if signals is None else signals.fast.running
        if signals is None or window is None:
            return
        self._most = max(self._most, window.peak)
        trial, most = self._trial, round(self._most)
        if trial is None or (self.followed is None and signals.queued_seconds < _QUEUED_SECONDS):
            return
        nearer = most < trial.before if trial.number < trial.before else most > trial.before
        as_advised = nearer and abs(most - trial.number) <= max(1.0, _NEAR * trial.number)
        self.followed = Followed(trial.before, most, trial.preempted, signals.preempted_share) if as_advised else None

    def note(self, changes: tuple[Change, ...], signals: Signals | None) -> None:
        """Remember what is advised now; what was advised last stands until something else is."""
        number, before = recommended_max_num_seqs(changes), round(self._most)
        if number is not None and signals is not None and number != before:
            self._advised = _Advised(number, before, signals.preempted_share)
