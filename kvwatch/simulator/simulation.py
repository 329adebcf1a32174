"""A simulated vLLM server in virtual time: clients, API server and engines as one queue of events.

Nothing here waits or reads a clock. `Simulation.advance` runs everything that happens up to a moment; the same seed and the same calls give
the same numbers to the last digit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from random import Random

from kvwatch.errors import UsageError
from kvwatch.simulator.clients import Clients
from kvwatch.simulator.config import GPU_8B, ServerConfig, StepProfile
from kvwatch.simulator.engine import Engine
from kvwatch.simulator.frontend import ApiServer, HttpCounters
from kvwatch.simulator.load import IDLE, ClosedLoop, Load
from kvwatch.simulator.scheduler import Request


class Simulation:
    """A server and its clients, from virtual time 0. `start_unix` is the wall-clock second that time 0 stands for."""

    def __init__(
        self,
        config: ServerConfig | None = None,
        load: Load = IDLE,
        *,
        profile: StepProfile = GPU_8B,
        seed: int = 0,
        start_unix: float = 0.0,
    ) -> None:
        self.config = config or ServerConfig()
        self.profile = profile
        self.start_unix = start_unix
        self.now = 0.0
        self.frozen = False
        self.asleep = False
        """As after ``/sleep``: the engines do nothing and say so."""
        self.grammar_seconds = 0.0
        """How long each request from now on is deferred, until its grammar is compiled."""
        self._steps = Random(f"{seed}/steps")  # noqa: S311 - a simulation must be repeatable
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._numbers = count()
        self.life = 0
        """Counts kills and mass aborts: requests under way before the last one are lost."""
        self._starts = 0
        self.clients = Clients(self, Random(f"{seed}/clients"))  # noqa: S311 - same
        self._boot()
        self.set_load(load)

    @property
    def load(self) -> Load:
        """What clients ask at the moment."""
        return self.clients.load

    @property
    def unix(self) -> float:
        """The virtual wall clock, unix seconds."""
        return self.start_unix + self.now

    @property
    def started_unix(self) -> float:
        """When the server process last started, unix seconds."""
        return self.start_unix + self._started

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a virtual time; what lies in the past is done at the next `advance`."""
        heapq.heappush(self._events, (max(time, self.now), next(self._order), action))

    def advance(self, to: float) -> None:
        """Let everything happen up to that virtual time; a time already passed changes nothing."""
        events = self._events
        while events and events[0][0] <= to:
            self.now, _, action = heapq.heappop(events)
            action()
        self.now = max(self.now, to)

    def set_load(self, load: Load) -> None:
        """Change what clients ask from now on; requests already sent are still answered."""
        self.clients.set_load(load)

    def restart(self, config: ServerConfig | None = None, *, downtime: float = 20.0) -> None:
        """Kill the server and start it again, with new flags if given: counters from zero, all requests lost.

        It is refused for `downtime` seconds. Clients of a closed loop come back when it is up. Raises `UsageError` for a negative downtime.
        """
        if downtime < 0:
            raise UsageError(f"a downtime is not negative: {downtime}")
        self.config = config or self.config
        self.life += 1
        self._starts += 1
        self.serving = False
        self.engines: list[Engine] = []
        start = self._starts
        self.at(self.now + downtime, lambda: self._start_again(start))

    def freeze(self) -> None:
        """Stop the engines between two steps: `/metrics` goes on answering with what it last knew."""
        self.frozen = True

    def thaw(self) -> None:
        """Let frozen engines go on."""
        self.frozen = False
        for engine in self.engines:
            if engine.overdue:
                engine.overdue = False
                self._end_step(engine)
            else:
                self._begin_step(engine)

    def abort_clients(self) -> None:
        """All clients hang up at once. An open loop's later requests still come; the clients of a closed loop are gone until a new load.

        The gauges keep what they showed after the last step: without work vLLM takes no step and sets them no more.
        """
        self.life += 1
        for engine in self.engines:
            for request in [*engine.scheduler.abort_all(), *engine.inbox]:
                self.http.record("2xx", self.now - request.arrived, request.prompt)
            engine.inbox.clear()
            engine.plan = None
            engine.overdue = False
        if isinstance(self.load, ClosedLoop):
            self.set_load(IDLE)

    def _boot(self) -> None:
        self._started = self.now
        self.serving = True
        self.engines = [Engine(self.config) for _ in range(self.config.data_parallel_size)]
        self.http = HttpCounters()
        self.api_server = ApiServer()

    def _start_again(self, start: int) -> None:
        if start != self._starts:
            return
        self._boot()
        if isinstance(self.load, ClosedLoop):
            self.set_load(self.load)

    def receive(self, prompt: int, output: int, number: int, shared_prefix: int = 0) -> None:
        """A request reaches the API server, which refuses what is too long and hands the rest to the least loaded engine."""
        if not self.serving:
            return
        if prompt >= self.config.max_model_len:
            self.http.record("4xx", 0.001, prompt)
            self.clients.answered(number)
            return
        request = Request(
            number=next(self._numbers),
            prompt=prompt,
            output=min(output, self.config.max_model_len - prompt),
            arrived=self.now,
            load=number,
            shared_prefix=min(shared_prefix, prompt),
        )
        engine = min(self.engines, key=lambda candidate: candidate.pressure)
        if self.grammar_seconds > 0:
            self._defer(engine, request)
            return
        engine.inbox.append(request)
        self._begin_step(engine)

    def _defer(self, engine: Engine, request: Request) -> None:
        life = self.life

        def compiled() -> None:
            if life == self.life:
                engine.scheduler.ready(request)
                self._begin_step(engine)

        request.queued_at = self.now
        engine.scheduler.deferred.append(request)
        engine.counters.set_gauges(engine.scheduler)
        self.at(self.now + self.grammar_seconds, compiled)

    def _begin_step(self, engine: Engine) -> None:
        """Start the next step if none is under way and there is something to do."""
        if engine.plan is not None or self.frozen:
            return
        for request in engine.inbox:
            request.queued_at = self.now
            engine.scheduler.add(request)
        engine.inbox.clear()
        if not engine.scheduler.has_work:
            return
        plan = engine.scheduler.plan()
        engine.plan = plan
        engine.began = self.now
        engine.counters.record_start(plan, self.now, self.config)
        seconds = self.profile.step_seconds(
            sequences=len(plan.work),
            prefill_tokens=plan.prefill_tokens,
            prefill_pairs=plan.prefill_pairs,
            context_tokens=plan.context_tokens,
        )
        if self.profile.jitter:
            seconds *= self._steps.lognormvariate(0.0, self.profile.jitter)
        if self.config.enable_mfu_metrics:
            engine.counters.flops += self.profile.flops_per_token * plan.tokens

        def end() -> None:
            if engine.plan is plan:
                self._end_step(engine)

        self.at(self.now + seconds, end)

    def _end_step(self, engine: Engine) -> None:
        if self.frozen:
            engine.overdue = True
            return
        plan = engine.plan
        if plan is None:
            return
        engine.plan = None
        emitted = engine.scheduler.complete(plan)
        engine.counters.record_end(emitted, engine.scheduler, engine.began, self.now)
        self._stream(emitted)
        self._begin_step(engine)

    def _stream(self, emitted: Sequence[Request]) -> None:
        """Hand out the tokens of a step; who has them all is answered."""
        work = self.profile.frontend_cpu_per_token * len(emitted) / self.config.data_parallel_size
        begins, life = self.api_server.stream(work, self.now), self.life
        done = [request for request in emitted if request.generated >= request.output]

        def answer() -> None:
            for request in done if life == self.life else ():
                self.http.record("2xx", self.now - request.arrived, request.prompt)
                self.clients.answered(request.load)

        if begins > self.now:
            self.at(begins, answer)
        else:
            answer()
