"""Whether what was advised was done: seen on ``/metrics`` after the server has started again, or in how many serve the model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvwatch.advice.neighbours import NOBODY, Neighbours
from kvwatch.config.policy import KnownConfig
from kvwatch.model import Change, EngineConfig, Signals, recommended_max_num_seqs
from kvwatch.text import number

_QUEUED_SECONDS: Final = 30.0
"""How long requests must have waited in every scrape before the most that run is taken for the limit: one fast window."""
_NEAR: Final = 0.25
"""Share by which the limit seen may differ from the one advised; a hand rounds to 8, 16 or 24."""
_LIMIT: Final = "--max-num-seqs"
_REPLICAS: Final = "replicas"
_NOTHING_SAID: Final = EngineConfig()
_NOTHING_KNOWN: Final = KnownConfig()


@dataclass(frozen=True, slots=True)
class Observed:
    """How an engine did at one moment."""

    preempted: float | None = None
    """Share of the requests leaving the batch that were preempted (0..1), over the slow window."""
    waiting: float | None = None
    """Requests, mean of the fast window."""

    @staticmethod
    def of(signals: Signals) -> Observed:
        """At the moment of *signals*."""
        waiting = signals.fast.waiting
        return Observed(signals.preempted_share, None if waiting is None else waiting.mean)


@dataclass(frozen=True, slots=True)
class Followed:
    """What was changed as advised, and what became of the engine."""

    lever: str
    before: str
    after: str
    then: Observed
    """When it was advised."""
    now: Observed

    @property
    def limit(self) -> int | None:
        """The most that run since the limit on running sequences was changed; ``None`` where something else was."""
        return int(self.after) if self.lever == _LIMIT else None

    @property
    def lowered(self) -> bool:
        """Fewer run than before."""
        return self.lever == _LIMIT and int(self.after) < int(self.before)

    def __str__(self) -> str:
        became = ""
        if self.then.preempted and self.now.preempted is not None:
            became = f", preempted {self.then.preempted:.0%} → {self.now.preempted:.0%} of the requests leaving the batch"
        elif self.then.waiting is not None and self.now.waiting is not None:
            became = f", {number(round(self.then.waiting))} → {number(round(self.now.waiting))} waiting"
        return f"followed: {self.lever} {self.before} → {self.after}{became}"


@dataclass(frozen=True, slots=True)
class _Advised:
    number: int
    before: int
    then: Observed


@dataclass(frozen=True, slots=True)
class _Flag:
    before: str
    proposed: str
    then: Observed


class Following:
    """Remembers of one engine what was advised and how it was set up, and says when that has become what was advised."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._advised: _Advised | None = None
        self._trial: _Advised | None = None
        self._most = 0.0
        self._limit: Followed | None = None
        self._flags: dict[str, _Flag] = {}
        self._set: tuple[str, _Flag] | None = None
        self._seen: Mapping[str, str] = {}
        self._replicas = 0
        self.followed: Followed | None = None

    def observe(
        self,
        signals: Signals | None,
        started: float | None,
        config: EngineConfig = _NOTHING_SAID,
        known: KnownConfig = _NOTHING_KNOWN,
        neighbours: Neighbours = NOBODY,
    ) -> None:
        """Take in what an engine does whose process started at *started* (Unix seconds; ``None`` where its page does not say)."""
        if started is not None and self._started is not None and started > self._started + 1:
            self._trial, self._advised, self._most, self._limit = self._advised or self._trial, None, 0.0, None
        self._started = started if started is not None else self._started
        if signals is not None:
            self._observe_limit(signals)
            self._observe_flags(_visible(config, known), len(neighbours.replicas.engines) + 1)
            self.followed = self._limit or self._flag(Observed.of(signals))

    def _observe_limit(self, signals: Signals) -> None:
        window = signals.fast.running
        if window is None:
            return
        self._most = max(self._most, window.peak)
        trial, most = self._trial, round(self._most)
        if trial is None or (self._limit is None and signals.queued_seconds < _QUEUED_SECONDS):
            return
        nearer = most < trial.before if trial.number < trial.before else most > trial.before
        as_advised = nearer and abs(most - trial.number) <= max(1.0, _NEAR * trial.number)
        self._limit = Followed(_LIMIT, str(trial.before), str(most), trial.then, Observed.of(signals)) if as_advised else None

    def _observe_flags(self, seen: dict[str, str], replicas: int) -> None:
        """A flag that now has the value advised, or more replicas than there ever were while more were advised."""
        self._replicas = max(self._replicas, replicas)
        seen[_REPLICAS] = str(self._replicas)
        for lever, flag in self._flags.items():
            value = seen.get(lever, flag.before)
            if value != flag.before and (lever == _REPLICAS or value.startswith(flag.proposed)):
                self._set = lever, _Flag(flag.before, value, flag.then)
        self._flags = {lever: flag for lever, flag in self._flags.items() if seen.get(lever, flag.before) == flag.before}
        if self._set is not None and seen.get(self._set[0]) != self._set[1].proposed:
            self._set = None
        self._seen = seen

    def _flag(self, now: Observed) -> Followed | None:
        if self._set is None:
            return None
        lever, flag = self._set
        return Followed(lever, flag.before, flag.proposed, flag.then, now)

    def note(self, changes: tuple[Change, ...], signals: Signals | None) -> None:
        """Remember what is advised now; what was advised last stands until something else is."""
        if signals is None:
            return
        limit, before = recommended_max_num_seqs(changes), round(self._most)
        if limit is not None and limit != before:
            self._advised = _Advised(limit, before, Observed.of(signals))
        for change in changes:
            if change.lever in self._seen and (change.proposed is not None or change.lever == _REPLICAS):
                self._flags[change.lever] = _Flag(self._seen[change.lever], change.proposed or "", Observed.of(signals))


def _visible(config: EngineConfig, known: KnownConfig) -> dict[str, str]:
    """What the page or the operator says of the flags that are advised, as the advice writes them."""
    found = {
        "--gpu-memory-utilization": None if config.gpu_memory_utilization is None else f"{config.gpu_memory_utilization:g}",
        "--kv-cache-dtype": config.cache_dtype,
        "--enable-prefix-caching": None if config.enable_prefix_caching is None else ("off", "on")[config.enable_prefix_caching],
        "--max-num-batched-tokens": None if known.max_num_batched_tokens is None else str(known.max_num_batched_tokens),
    }
    return {lever: value for lever, value in found.items() if value is not None}
