"""The classifier as a whole: scrapes go in, one `Assessment` per engine comes out. No clock, no I/O.

The same objects run live and in replay; whoever feeds them says what time it is through `Scrape.at`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from kvwatch.capacity.pool import RanksSeen, pool_tokens
from kvwatch.capacity.pool_fit import PoolShape, shape_of
from kvwatch.classifier.history import History
from kvwatch.classifier.hysteresis import Hysteresis
from kvwatch.classifier.preemption import is_storm
from kvwatch.classifier.processes import Answer, Processes
from kvwatch.classifier.rule import Candidate
from kvwatch.classifier.rules import find
from kvwatch.classifier.rules.pressure import slots_alone_bind, stands_at_ceiling
from kvwatch.classifier.saturation import ThroughputCurve
from kvwatch.classifier.signals import derive
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.model import MOST_ENGINES, Assessment, Cause, EngineConfig, EngineId, Scrape, ScrapeFailure, Signals, Snapshot, State, Verdict
from kvwatch.text import number

WARM_UP_SECONDS: Final = 8.0
"""An engine is `warming_up` for so long after its first scrape: two polls at the default interval."""
_TOO_MANY_RESTARTS: Final = 3
_FAR_MORE: Final = 2.0
_IN_TURN: Final = Candidate(State.UNKNOWN, Cause.AMBIGUOUS, ("several processes answer in turn under one address",))
_STRAY: Final = Candidate(State.UNKNOWN, Cause.AMBIGUOUS, ("an older process answered under this address",))
_TURNS_POLLS: Final = 8
"""Polls in which three turns of strict alternation are seen, with a lost one or two among them."""
_SILENT_FIRST: Final = 0.3
"""Share of the patience with a silent engine after which clients that still wait are no part of a mass abort, which takes less than a poll.

Lower: a step that takes seconds counts as silence; higher: clients that give up after 10 s, as in the recording of a real freeze, hide it.
"""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What is known beside an engine's own numbers."""

    capacity_tokens: int | None
    shape: PoolShape | None
    known: KnownConfig
    cpu: float | None
    gpu: float | None
    http_requests: float | None
    """Responses ended by the API server; ``None`` where several engines share it."""


class EngineClassifier:
    """One engine: its history, its throughput curve and its confirmed verdict."""

    def __init__(self, engine: EngineId, policy: Policy, interval: float) -> None:
        self._engine = engine
        self._policy = policy
        self._interval = interval
        self._history = History(**_memory(policy, interval))
        self._curve = ThroughputCurve()
        self._hysteresis = Hysteresis(interval)
        self._transitions = 0
        self._state_seconds = dict.fromkeys(State, 0.0)
        self._confirmed_at: float | None = None
        self._http_when_alive: float | None = None
        self._hung = False
        """Silent for a while with clients still waiting: those that leave later leave because of it."""
        self._proven_ceiling: float | None = None
        """The batch at which slots alone were confirmed to bind; nothing once a larger one has been seen."""
        self._config = EngineConfig()
        self.seen_at = 0.0

    def reconfigure(self, policy: Policy) -> None:
        """Judge by another policy from the next snapshot on, with what is remembered."""
        self._policy = policy
        self._history.remember(**_memory(policy, self._interval))

    def observe(self, snapshot: Snapshot, context: EngineContext, answer: Answer, *, in_turn: bool) -> Assessment:
        """Judge the engine after one more snapshot of it, of the process that *answer* says; *in_turn*: several processes answer."""
        self.seen_at = snapshot.at
        self._config = snapshot.config
        before = self._history.append(snapshot, restarted=answer is Answer.RESTARTED, another=answer is Answer.ANOTHER)
        if before is not None:
            self._curve.note(before, snapshot)
        elif answer is not Answer.SAME or snapshot.at in self._history.restarts:
            self._curve, self._proven_ceiling = ThroughputCurve(), None
        clients_left = self._clients_left(snapshot, context.http_requests)  # looked at every time: it remembers
        if snapshot.asleep:
            return self.confirm(
                Candidate(State.UNKNOWN, Cause.ASLEEP, ("the engine is in sleep mode: its numbers stand still",)), snapshot.at
            )
        if in_turn or self._counters_alternate(snapshot.at):
            return self.confirm(_IN_TURN, snapshot.at)
        if self._history.seconds_seen < WARM_UP_SECONDS:
            seen = number(self._history.seconds_seen)
            evidence = f"seen for {seen} s since kvwatch or the engine started; one scrape is no evidence"
            return self.confirm(Candidate(State.UNKNOWN, Cause.WARMING_UP, (evidence,)), snapshot.at)
        signals = derive(
            self._history,
            self._policy,
            interval=self._interval,
            capacity_tokens=context.capacity_tokens,
            shape=context.shape,
            known=context.known,
            curve=self._curve,
            clients_left=clients_left,
            proven_ceiling=self._proven_ceiling,
            process_cpu_ratio=context.cpu,
            gpu_utilization=context.gpu,
        )
        found = self.confirm(find(signals, self._policy), snapshot.at, signals)
        if found.verdict.cause is Cause.SEQUENCE_SLOTS and stands_at_ceiling(signals) and slots_alone_bind(signals):
            self._proven_ceiling = self._history.highest_running
        return found

    def confirm(self, finding: Candidate, at: float, signals: Signals | None = None) -> Assessment:
        """Put *finding* through the hysteresis and account for the time since the last word."""
        before = self._hysteresis.confirmed
        if before is not None and self._confirmed_at is not None:
            self._state_seconds[before.state] += at - self._confirmed_at
        self._confirmed_at = at
        said = self._hysteresis.settle(finding, at)
        self._transitions += before is not None and said.state is not before.state
        storm = None if signals is None else is_storm(signals, self._policy)
        if storm is not None:
            storm = storm and said.state is State.KV_BOUND
        verdict = Verdict(self._engine, said.state, said.cause, said.evidence, self._hysteresis.since, storm)
        return Assessment(verdict, signals, config=self._config, state_seconds=dict(self._state_seconds), transitions=self._transitions)

    def _clients_left(self, snapshot: Snapshot, http_requests: float | None) -> bool:
        """Whether as many responses have ended since the engine last moved as it says it still has to answer.

        Far more than that are clients that came later and were not answered either: a living engine would have moved for them.
        """
        lifeless = self._history.quiet.seconds_without_life()
        if not lifeless or self._http_when_alive is None:
            self._http_when_alive, self._hung = http_requests, False
        if http_requests is None or self._http_when_alive is None or snapshot.computed_prompt_tokens is not None:
            return False  # since vLLM 0.16 at the latest an abort sets the gauges, so those that stand still are a hung engine's
        left, there = http_requests - self._http_when_alive, (snapshot.running or 0.0) + (snapshot.waiting or 0.0)
        if lifeless is not None and lifeless >= _SILENT_FIRST * self._policy.thresholds.stall and left < there:
            self._hung = True
        return 0 < there <= left < _FAR_MORE * there and not self._hung

    def _counters_alternate(self, at: float) -> bool:
        restarts = self._history.restarts
        return len(restarts) >= _TOO_MANY_RESTARTS and at - restarts[-_TOO_MANY_RESTARTS] < _turns_window(self._policy, self._interval)


class TargetClassifier:
    """All engines behind one target. *interval* is the time between polls in seconds, *known* what the operator knows."""

    def __init__(self, policy: Policy, known: KnownConfig = KnownConfig(), *, interval: float = 5.0) -> None:  # noqa: B008 - frozen
        self._policy = policy
        self._known = known
        self._interval = interval
        self._engines: dict[EngineId, EngineClassifier] = {}
        self._processes = Processes(_turns_window(policy, interval))
        self._cpu: deque[tuple[float, float]] = deque()
        self._failing_since: float | None = None
        self._ranks = RanksSeen()

    def reconfigure(self, policy: Policy, known: KnownConfig) -> None:
        """Judge by another policy, and by what the operator knows now, with what is remembered of every engine."""
        self._policy, self._known = policy, known
        self._processes.window = _turns_window(policy, self._interval)
        for classifier in self._engines.values():
            classifier.reconfigure(policy)

    def observe(self, scrape: Scrape) -> tuple[Assessment, ...]:
        """Judge every engine after a successful scrape, in order of model name and engine."""
        self._failing_since = None
        answer = self._processes.look(scrape)
        if answer is Answer.STRAY and self._engines:
            said = _IN_TURN if self._processes.alternate(scrape.at) else _STRAY
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
        if self._failing_since is None:
            self._failing_since = failure.at
        cause = failure.reason.cause
        finding = Candidate(State.UNKNOWN, cause, (f"{failure.reason}: {failure.detail}",))
        if self._engines:
            return tuple(classifier.confirm(finding, failure.at) for _, classifier in sorted(self._engines.items()))
        return (Assessment(Verdict(None, State.UNKNOWN, cause, finding.evidence, self._failing_since), None),)

    def _observe(self, snapshot: Snapshot, scrape: Scrape, answer: Answer, *, in_turn: bool, cpu: float | None) -> Assessment:
        classifier = self._engines.get(snapshot.engine)
        if classifier is None:
            classifier = self._engines[snapshot.engine] = EngineClassifier(snapshot.engine, self._policy, self._interval)
        ranks = self._ranks.beside(snapshot)
        context = EngineContext(
            capacity_tokens=pool_tokens(snapshot.config, ranks, self._known),
            shape=shape_of(snapshot.config, ranks),
            known=self._known,
            cpu=cpu,
            gpu=scrape.gpu_utilization,
            http_requests=scrape.http_requests if len(scrape.snapshots) == 1 else None,
        )
        return classifier.observe(snapshot, context, answer, in_turn=in_turn)

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
        finding = Candidate(State.UNKNOWN, Cause.STALE, ("the target answers, but no longer reports this engine",))
        return [classifier.confirm(finding, scrape.at) for classifier in gone.values()]

    def _cpu_ratio(self, scrape: Scrape, *, restarted: bool) -> float | None:
        """Cores the API server's process used over the fast window; ``None`` until it is covered."""
        if scrape.process_cpu_seconds is None:
            return None
        if restarted or (self._cpu and scrape.process_cpu_seconds < self._cpu[-1][1]):
            self._cpu.clear()
        self._cpu.append((scrape.at, scrape.process_cpu_seconds))
        window = self._policy.window.fast - self._interval / 2
        while len(self._cpu) > 1 and scrape.at - self._cpu[1][0] >= window:
            self._cpu.popleft()
        (first_at, first), (last_at, last) = self._cpu[0], self._cpu[-1]
        return (last - first) / (last_at - first_at) if last_at - first_at >= max(window, self._interval / 2) else None


def _memory(policy: Policy, interval: float) -> dict[str, float]:
    """What a `History` has to remember."""
    return {
        "span": policy.window.slow,
        "fine": max(policy.window.fast, 2 * interval) + interval,
        "max_gap": max(4 * interval, policy.window.slow),
        "stall": policy.thresholds.stall,
    }


def _turns_window(policy: Policy, interval: float) -> float:
    """Seconds over which the turns of several processes are remembered."""
    return max(policy.window.slow, _TURNS_POLLS * interval)
