"""One engine: its snapshots go in, its `Assessment` comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvwatch.capacity.pool_fit import PoolShape
from kvwatch.classifier.history import History
from kvwatch.classifier.hysteresis import Hysteresis
from kvwatch.classifier.preemption import is_storm
from kvwatch.classifier.processes import Answer, turns_window
from kvwatch.classifier.rule import Candidate
from kvwatch.classifier.rules import find
from kvwatch.classifier.rules.pressure import slots_alone_bind, stands_at_ceiling
from kvwatch.classifier.saturation import ThroughputCurve
from kvwatch.classifier.signals import derive
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.model import Assessment, Cause, EngineConfig, EngineId, Signals, Snapshot, State, Verdict
from kvwatch.text import number

WARM_UP_SECONDS: Final = 8.0
"""An engine is `warming_up` for so long after its first scrape: two polls at the default interval."""
_TOO_MANY_RESTARTS: Final = 3
"""Restarts within the turns' window from which two processes are taken to answer in turn: two may be a crash and its repair."""
_FAR_MORE: Final = 2.0
"""Times as many responses as requests are there. Lower: a mass abort beside new clients is called a stall; higher: a stall is missed."""
IN_TURN: Final = Candidate(State.UNKNOWN, Cause.AMBIGUOUS, ("several processes answer in turn under one address",))
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
            return self.confirm(IN_TURN, snapshot.at)
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

    def confirm(self, candidate: Candidate, at: float, signals: Signals | None = None) -> Assessment:
        """Put *candidate* through the hysteresis and account for the time since the last word."""
        before = self._hysteresis.confirmed
        if before is not None and self._confirmed_at is not None:
            self._state_seconds[before.state] += at - self._confirmed_at
        self._confirmed_at = at
        said = self._hysteresis.settle(candidate, at)
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
        return len(restarts) >= _TOO_MANY_RESTARTS and at - restarts[-_TOO_MANY_RESTARTS] < turns_window(self._policy, self._interval)


def _memory(policy: Policy, interval: float) -> dict[str, float]:
    """What a `History` has to remember."""
    return {
        "span": policy.window.slow,
        "fine": max(policy.window.fast, 2 * interval) + interval,
        "max_gap": max(4 * interval, policy.window.slow),
        "stall": policy.thresholds.stall,
    }
