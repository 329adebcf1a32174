"""The classifier as a whole: scrapes of one target go in, one `Assessment` per engine comes out. No clock, no I/O.

The same objects run live and in replay; whoever feeds them says what time it is through `Scrape.at`.
"""

from __future__ import annotations

from typing import Final

from kvwatch.capacity.pool import RanksSeen, pool_tokens
from kvwatch.capacity.pool_fit import shape_of
from kvwatch.classifier.engine import IN_TURN, EngineClassifier, EngineContext
from kvwatch.classifier.processes import Answer, Processes, turns_window
from kvwatch.classifier.rule import Candidate
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.model import MOST_ENGINES, Assessment, Cause, EngineId, Scrape, ScrapeFailure, Snapshot, State, Verdict

_STRAY: Final = Candidate(State.UNKNOWN, Cause.AMBIGUOUS, ("an older process answered under this address",))


class TargetClassifier:
    """All engines behind one target. *interval* is the time between polls in seconds, *known* what the operator knows."""

    def __init__(self, policy: Policy, known: KnownConfig = KnownConfig(), *, interval: float = 5.0) -> None:  # noqa: B008 - frozen
        self._policy = policy
        self._known = known
        self._interval = interval
        self._engines: dict[EngineId, EngineClassifier] = {}
        self._processes = Processes(turns_window(policy, interval))
        self._cpu: list[tuple[float, float]] = []
        self._failing_since: float | None = None
        self._ranks = RanksSeen()
        self.faults: tuple[Exception, ...] = ()
        """Errors of kvwatch's own at the last scrape: the engines they concern are unknown, and nothing else changed."""

    def reconfigure(self, policy: Policy, known: KnownConfig) -> None:
        """Judge by another policy, and by what the operator knows now, with what is remembered of every engine."""
        self._policy, self._known = policy, known
        self._processes.window = turns_window(policy, self._interval)
        for classifier in self._engines.values():
            classifier.reconfigure(policy)

    def observe(self, scrape: Scrape) -> tuple[Assessment, ...]:
        """Judge every engine after a successful scrape, in order of model name and engine."""
        self._failing_since, self.faults = None, ()
        answer = self._processes.look(scrape)
        if answer is Answer.STRAY and self._engines:
            said = IN_TURN if self._processes.alternate(scrape.at) else _STRAY
            return tuple(classifier.confirm(said, scrape.at) for _, classifier in sorted(self._engines.items()))
        if answer is not Answer.SAME:
            present = {snapshot.engine for snapshot in scrape.snapshots}
            self._engines = {engine: classifier for engine, classifier in self._engines.items() if engine in present}
            self._ranks = RanksSeen()
        self._ranks.look(scrape)
        cpu = self._cpu_ratio(scrape, restarted=answer is not Answer.SAME)
        in_turn = self._processes.alternate(scrape.at)
        found = [self._observe(snapshot, scrape, answer, in_turn=in_turn, cpu=cpu) for snapshot in scrape.snapshots]
        found += self._missing(scrape)
        return tuple(sorted(found, key=lambda a: a.verdict.engine or EngineId("", "")))

    def fail(self, failure: ScrapeFailure) -> tuple[Assessment, ...]:
        """Every known engine is unknown, and why; one assessment without engine while none is known."""
        self.faults = ()
        if self._failing_since is None:
            self._failing_since = failure.at
        cause = failure.reason.cause
        candidate = Candidate(State.UNKNOWN, cause, (f"{failure.reason}: {failure.detail}",))
        if self._engines:
            return tuple(classifier.confirm(candidate, failure.at) for _, classifier in sorted(self._engines.items()))
        return (Assessment(Verdict(None, State.UNKNOWN, cause, candidate.evidence, self._failing_since), None),)

    def _observe(self, snapshot: Snapshot, scrape: Scrape, answer: Answer, *, in_turn: bool, cpu: float | None) -> Assessment:
        classifier = self._engines.get(snapshot.engine)
        if classifier is None:
            classifier = self._engines[snapshot.engine] = EngineClassifier(snapshot.engine, self._policy, self._interval)
        try:
            return classifier.observe(snapshot, self._context(snapshot, scrape, cpu), answer, in_turn=in_turn)
        except Exception as error:  # noqa: BLE001 - what fails for one engine must cost no other one its verdict
            self.faults = (*self.faults, error)
            broken = Candidate(State.UNKNOWN, Cause.AMBIGUOUS, (f"kvwatch failed: {type(error).__name__}, its log says where",))
            return classifier.confirm(broken, scrape.at)

    def _context(self, snapshot: Snapshot, scrape: Scrape, cpu: float | None) -> EngineContext:
        ranks = self._ranks.beside(snapshot)
        return EngineContext(
            capacity_tokens=pool_tokens(snapshot.config, ranks, self._known),
            shape=shape_of(snapshot.config, ranks),
            known=self._known,
            cpu=cpu,
            gpu=scrape.gpu_utilization,
            http_requests=scrape.http_requests if len(scrape.snapshots) == 1 else None,
        )

    def _missing(self, scrape: Scrape) -> list[Assessment]:
        """Engines that were there and are not in this scrape; forgotten after a while."""
        present = {snapshot.engine for snapshot in scrape.snapshots}
        gone = {engine: classifier for engine, classifier in self._engines.items() if engine not in present}
        if not gone:
            return []
        room = max(0, MOST_ENGINES - len(present))
        for place, engine in enumerate(sorted(gone, key=lambda engine: gone[engine].seen_at, reverse=True)):
            if place >= room or scrape.at - gone[engine].seen_at > self._policy.thresholds.forget:
                del self._engines[engine], gone[engine]
        candidate = Candidate(State.UNKNOWN, Cause.STALE, ("the target answers, but no longer reports this engine",))
        return [classifier.confirm(candidate, scrape.at) for classifier in gone.values()]

    def _cpu_ratio(self, scrape: Scrape, *, restarted: bool) -> float | None:
        """Cores the API server's process used over the fast window; ``None`` until it is covered."""
        if scrape.process_cpu_seconds is None:
            return None
        if restarted or (self._cpu and scrape.process_cpu_seconds < self._cpu[-1][1]):
            self._cpu.clear()
        self._cpu.append((scrape.at, scrape.process_cpu_seconds))
        window = max(self._policy.window.fast, 2 * self._interval) - self._interval / 2
        while len(self._cpu) > 1 and scrape.at - self._cpu[1][0] >= window:
            self._cpu.pop(0)
        (first_at, first), (last_at, last) = self._cpu[0], self._cpu[-1]
        return (last - first) / (last_at - first_at) if last_at - first_at >= window else None
