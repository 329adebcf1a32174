"""An engine and the web framework in front of all of them, as state that the simulation moves on."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.counters import HTTP_COARSE_BOUNDS, HTTP_FINE_BOUNDS, Distribution, EngineCounters
from kvwatch.simulator.scheduler import Request, Scheduler, StepPlan


@dataclass(slots=True)
class HttpCounters:
    """What the web framework in front of the engines counts; responses that ended, by status class."""

    responses: dict[str, int] = field(default_factory=dict)
    request_bytes: int = 0
    fine: Distribution = field(default_factory=lambda: Distribution(HTTP_FINE_BOUNDS))
    coarse: Distribution = field(default_factory=lambda: Distribution(HTTP_COARSE_BOUNDS))

    def record(self, status: str, seconds: float, prompt: int) -> None:
        """A response ended; a prompt is taken for one byte a token plus the JSON around it."""
        self.responses[status] = self.responses.get(status, 0) + 1
        self.request_bytes += prompt + 80
        self.fine.observe(seconds)
        self.coarse.observe(seconds)


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
        return 4 * (len(self.scheduler.waiting) + len(self.inbox)) + len(self.scheduler.running)
