"""vLLM's V1 scheduler as a pure state machine: no clock, no randomness, one call to plan a step and one to finish it.

Source: vLLM 0.32 ``v1/core/sched/scheduler.py``, first come first served, one KV group, no speculative decoding, no async scheduling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from kvwatch.simulator.blocks import BlockPool
from kvwatch.simulator.config import ServerConfig


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way through an engine; lengths in tokens, times in virtual seconds."""

    number: int
    prompt: int
    output: int
    """Tokens it will generate (``max_tokens`` with ``ignore_eos``)."""
    arrived: float
    """When the API server got it."""
    load: int = 0
    """Which load sent it: a closed loop's client goes on only while its load is the current one."""
    shared_prefix: int = 0
    """Leading prompt tokens that every request of this load has in common."""
    generated: int = 0
    computed: int = 0
    """Tokens whose KV is in the cache; back to 0 at a preemption."""
    cached_at_admission: int = 0
    blocks: list[int] = field(default_factory=list)
    preemptions: int = 0
    uncounted_preemptions: int = 0
    """Preemptions since its last token: vLLM counts them only when the next one comes out."""
    queued_at: float = 0.0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float = 0.0

    @property
    def length(self) -> int:
        """Tokens that must be in the cache before the next one can come out."""
        return self.prompt + self.generated

    def keys(self, block_size: int, tokens: int) -> Iterator[Hashable]:
        """What the full blocks among the first `tokens` hold, as prefix caching would hash them."""
        shared = self.shared_prefix // block_size
        return (index if index < shared else (self.number, index) for index in range(tokens // block_size))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step will compute."""

    work: list[tuple[Request, int]]
    """Each scheduled request and its number of tokens, running ones first."""
    prefill_tokens: int
    """Tokens of prompts and of recomputations; the rest is one token for each decoding sequence."""
    prefill_pairs: float
    """Pairs of such a token and the tokens up to it, which attention computes."""
    context_tokens: int
    """KV tokens the step reads: the length of every scheduled sequence up to its last token of this step."""
    admitted: list[Request]
    preempted: list[Request]

    @property
    def tokens(self) -> int:
        """Tokens computed in the step; never more than ``max_num_batched_tokens``."""
        return sum(count for _, count in self.work)


class Scheduler:
    """The queues and the cache of one engine."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_gpu_blocks, caching=config.enable_prefix_caching)
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.deferred: list[Request] = []
        """Wait for something else than capacity: their grammar. vLLM shows them as waiting."""

    @property
    def has_work(self) -> bool:
        """Whether a step would have anything to do."""
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request behind all others; prompt and output together must fit ``max_model_len``."""
        self.waiting.append(request)

    def ready(self, request: Request) -> None:
        """What a deferred request waited for is there: it queues behind all others."""
        self.deferred.remove(request)
        self.waiting.append(request)

    def plan(self) -> StepPlan:
        """Choose the next step's work and hold its blocks: running requests first, then the queue while everything fits."""
        budget = self.config.max_num_batched_tokens
        work: list[tuple[Request, int]] = []
        preempted: list[Request] = []
        prefill = context = index = 0
        pairs = 0.0
        block_size = self.config.block_size
        running = self.running
        while index < len(running) and budget:
            request = running[index]
            tokens = min(request.length - request.computed, budget)
            end = request.computed + tokens
            missing = -(-end // block_size) - len(request.blocks)
            if missing > 0:
                if not self._make_room(missing, request, preempted):
                    break
                request.blocks += self.pool.allocate(missing)
            work.append((request, tokens))
            budget -= tokens
            context += end
            if tokens > 1 or not request.generated:
                prefill += tokens
                pairs += tokens * (end - tokens / 2)
            index += 1
        admitted: list[Request] = []
        if not preempted:
            for request, tokens in self._admit(budget):
                work.append((request, tokens))
                admitted.append(request)
                context += request.computed + tokens
                prefill += tokens
                pairs += tokens * (request.computed + tokens / 2)
        return StepPlan(
            work=work,
            prefill_tokens=prefill,
            prefill_pairs=pairs,
            context_tokens=context,
            admitted=admitted,
            preempted=preempted,
        )

    def complete(self, plan: StepPlan) -> list[Request]:
        """Account for a finished step; returns the requests that each gave one token, and lets the ones that are done go."""
        emitted = []
        done = False
        for request, tokens in plan.work:
            request.computed += tokens
            if request.computed == request.prompt + request.generated:
                if not request.generated and request.shared_prefix:
                    self._publish(request)
                request.generated += 1
                emitted.append(request)
                done = done or request.generated >= request.output
        if done:
            for request in emitted:
                if request.generated >= request.output:
                    self._free(request)
            self.running = [request for request in self.running if request.generated < request.output]
        return emitted

    def abort_all(self) -> list[Request]:
        """Drop every request at once, as when all clients hang up; returns them."""
        dropped = [*self.running, *self.waiting, *self.deferred]
        for request in self.running:
            self._free(request)
        self.running = []
        self.waiting.clear()
        self.deferred.clear()
        return dropped

    def _make_room(self, missing: int, request: Request, preempted: list[Request]) -> bool:
        """Evict the newest running requests until `missing` blocks are free; False when `request` itself had to go."""
        while self.pool.free < missing:
            victim = self.running.pop()
            self._free(victim)
            victim.computed = 0
            victim.preemptions += 1
            victim.uncounted_preemptions += 1
            self.waiting.appendleft(victim)
            preempted.append(victim)
            if victim is request:
                return False
        return True

    def _admit(self, budget: int) -> list[tuple[Request, int]]:
        """Move requests from the head of the queue to running while slots, budget and blocks for their whole length last."""
        admitted = []
        block_size = self.config.block_size
        reserved = sum(max(0, -(-request.length // block_size) - len(request.blocks)) for request in self.running) if self.waiting else 0
        while self.waiting and budget and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            cached = self.pool.lookup(request.keys(block_size, request.length - 1)) if self.config.enable_prefix_caching else []
            whole = -(-request.length // block_size) - len(cached)
            kept = int(self.config.watermark * self.config.num_gpu_blocks) if self.running else 0
            if whole + self.pool.unreferenced(cached) + reserved + kept > self.pool.free:
                break
            self.waiting.popleft()
            self.pool.take(cached)
            request.computed = request.cached_at_admission = len(cached) * block_size
            tokens = min(request.length - request.computed, budget)
            now = -(-(request.computed + tokens) // block_size) - len(cached)
            request.blocks = cached + self.pool.allocate(now)
            reserved += whole - now
            budget -= tokens
            self.running.append(request)
            admitted.append((request, tokens))
        return admitted

    def _publish(self, request: Request) -> None:
        full = request.computed // self.config.block_size
        self.pool.publish(request.blocks[:full], request.keys(self.config.block_size, request.computed))

    def _free(self, request: Request) -> None:
        if self.config.enable_prefix_caching:
            self._publish(request)
        self.pool.release(request.blocks)
        request.blocks = []
