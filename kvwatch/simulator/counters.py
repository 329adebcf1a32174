"""What vLLM counts about an engine, kept as vLLM keeps it: gauges set after a step, counters and histograms fed by its outputs.

Source: vLLM 0.32 ``v1/metrics/loggers.py`` and ``v1/metrics/stats.py``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.scheduler import Request, Scheduler, StepPlan

TTFT_BOUNDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_BOUNDS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
LATENCY_BOUNDS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_TOKENS_BOUNDS: Final = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
SMALL_COUNT_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BOUNDS: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
HTTP_FINE_BOUNDS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
HTTP_COARSE_BOUNDS: Final = (0.1, 0.5, 1.0)


def one_two_five(highest: int) -> tuple[float, ...]:
    """The edges vLLM has for token lengths: 1, 2, 5, 10, 20, 50 … up to `highest`, the model length."""
    edges: list[float] = []
    exponent = 0
    while True:
        for mantissa in (1, 2, 5):
            edge = mantissa * 10**exponent
            if edge > highest:
                return tuple(edges)
            edges.append(float(edge))
        exponent += 1


class Distribution:
    """A histogram being filled; `counts` are per bucket, the last one is above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, as often as it was seen."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)


@dataclass(slots=True)
class Gauges:
    """As they were after the last step; vLLM sets them nowhere else."""

    running: int = 0
    waiting: int = 0
    """The deferred ones included."""
    deferred: int = 0
    usage: float = 0.0


@dataclass(slots=True)
class EngineCounters:
    """One engine's counters and histograms since the server's start; seconds and tokens."""

    max_model_len: int
    api_servers: int = 1
    gauges: Gauges = field(default_factory=Gauges)
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    finished: int = 0
    flops: float = 0.0
    steps: int = 0
    """Steps taken, with outputs or not; not exposed."""
    step_tokens: Distribution = field(default_factory=lambda: Distribution(STEP_TOKENS_BOUNDS))
    time_to_first_token: Distribution = field(default_factory=lambda: Distribution(TTFT_BOUNDS))
    inter_token: Distribution = field(default_factory=lambda: Distribution(ITL_BOUNDS))
    time_per_output_token: Distribution = field(default_factory=lambda: Distribution(ITL_BOUNDS))
    e2e: Distribution = field(default_factory=lambda: Distribution(LATENCY_BOUNDS))
    queue: Distribution = field(default_factory=lambda: Distribution(LATENCY_BOUNDS))
    inference: Distribution = field(default_factory=lambda: Distribution(LATENCY_BOUNDS))
    prefill: Distribution = field(default_factory=lambda: Distribution(LATENCY_BOUNDS))
    decode: Distribution = field(default_factory=lambda: Distribution(LATENCY_BOUNDS))
    request_preemptions: Distribution = field(default_factory=lambda: Distribution(PREEMPTION_BOUNDS))
    params_n: Distribution = field(default_factory=lambda: Distribution(SMALL_COUNT_BOUNDS))
    prompt_length: Distribution = field(init=False)
    generation_length: Distribution = field(init=False)
    max_tokens: Distribution = field(init=False)
    computed_prompt_length: Distribution = field(init=False)

    def __post_init__(self) -> None:
        bounds = one_two_five(self.max_model_len)
        self.prompt_length = Distribution(bounds)
        self.generation_length = Distribution(bounds)
        self.max_tokens = Distribution(bounds)
        self.computed_prompt_length = Distribution(bounds)

    def record_start(self, plan: StepPlan, now: float, config: ServerConfig) -> None:
        """A step begins: first admissions are stamped and their prefix look-ups counted (those of resumed victims are not)."""
        for request in plan.admitted:
            if request.scheduled_at is None:
                request.scheduled_at = now
                if config.enable_prefix_caching:
                    self.prefix_queries += request.prompt
                    self.prefix_hits += request.cached_at_admission

    def record_end(self, emitted: Sequence[Request], scheduler: Scheduler, began: float, now: float) -> None:
        """A step is over: count its tokens, the preemptions its outputs report, and set the gauges."""
        self.steps += 1
        slices = [0] * self.api_servers
        usual = 0
        for request in emitted:
            tokens = 1
            if request.uncounted_preemptions:
                self.preemptions += request.uncounted_preemptions
                request.uncounted_preemptions = 0
            if request.generated == 1:
                tokens += self._first_token(request, now)
            elif request.last_token_at == began:
                usual += 1
            else:
                self.inter_token.observe(now - request.last_token_at)
            request.last_token_at = now
            slices[request.number % self.api_servers] += tokens
            if request.generated >= request.output:
                self._finish(request, now)
        if usual:
            self.inter_token.observe(now - began, usual)
        self.generation_tokens += len(emitted)
        for tokens in slices:
            if tokens:
                self.step_tokens.observe(tokens)
        self.set_gauges(scheduler)

    def set_gauges(self, scheduler: Scheduler) -> None:
        """Show the queues and the pool as they are."""
        deferred = len(scheduler.deferred)
        waiting = len(scheduler.waiting) + deferred
        self.gauges = Gauges(running=len(scheduler.running), waiting=waiting, deferred=deferred, usage=scheduler.pool.usage)

    def _first_token(self, request: Request, now: float) -> int:
        """Count a prompt; returns the tokens of it that this step is credited with."""
        hits = min(request.cached_at_admission, request.prompt) if not request.preemptions else 0
        request.first_token_at = now
        self.time_to_first_token.observe(now - request.arrived)
        self.prompt_tokens += request.prompt
        self.cached_prompt_tokens += hits
        return request.prompt - hits

    def _finish(self, request: Request, now: float) -> None:
        scheduled = request.scheduled_at if request.scheduled_at is not None else request.queued_at
        first = request.first_token_at if request.first_token_at is not None else now
        self.finished += 1
        self.e2e.observe(now - request.arrived)
        self.queue.observe(scheduled - request.queued_at)
        self.inference.observe(now - scheduled)
        self.prefill.observe(first - scheduled)
        self.decode.observe(now - first)
        self.time_per_output_token.observe((now - first) / (request.output - 1) if request.output > 1 else 0.0)
        self.request_preemptions.observe(request.preemptions)
        self.params_n.observe(1)
        self.prompt_length.observe(request.prompt)
        self.generation_length.observe(request.output)
        self.max_tokens.observe(request.output)
        self.computed_prompt_length.observe(request.prompt - (0 if request.preemptions else request.cached_at_admission))
