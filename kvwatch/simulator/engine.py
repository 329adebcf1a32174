"""An engine as state that the simulation moves on."""

from __future__ import annotations

from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.counters import EngineCounters
from kvwatch.simulator.scheduler import Request, Scheduler, StepPlan


class Engine:
    """One engine: its scheduler, its counters, what has not reached the scheduler yet, and the step in flight."""

    def __init__(self, config: ServerConfig) -> None:
        self.scheduler = Scheduler(config)
        self.counters = EngineCounters(max_model_len=config.max_model_len, api_servers=config.data_parallel_size)
        self.inbox: list[Request] = []
        self.plan: StepPlan | None = None
        self.began = 0.0
        self.overdue = False
        """Its step is over but the engine is frozen."""

    @property
    def pressure(self) -> int:
        """What vLLM's load balancer compares: a waiting request weighs four running ones."""
        return 4 * (len(self.scheduler.waiting) + len(self.scheduler.deferred) + len(self.inbox)) + len(self.scheduler.running)
