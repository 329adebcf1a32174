"""What a scrape said, as vLLM said it: counters with their resets still in, histograms with their own edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Flag, auto
from types import MappingProxyType
from typing import Any, Final

from kvwatch.model.vocabulary import EngineId, FailureReason

MOST_ENGINES: Final = 512
"""Engines of one target that are judged, those that have left its page among them: twice the ranks of the largest deployments."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative Prometheus histogram at one scrape.

    ``bounds`` are the finite upper edges in ascending order, as read from ``le``, never assumed; ``counts`` are the
    cumulative counts of those edges followed by the one of ``+Inf``, so ``len(counts) == len(bounds) + 1``. vLLM's ``sum`` may fall or be
    absurd (reference: vLLM #49135), so resets are never detected from it.
    """

    bounds: tuple[float, ...]
    counts: Sequence[float]
    sum: float | None

    @property
    def count(self) -> float:
        """Observations so far."""
        return self.counts[-1]

    def totals(self) -> Histogram:
        """Count and sum alone, in a histogram without finite edges."""
        return Histogram((), (self.count,), self.sum)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What ``vllm:cache_config_info`` says of an engine; every field may be missing."""

    kv_cache_size_tokens: int | None = None
    """KV pool of this engine in tokens, from the label of that name (vLLM >= 0.24)."""
    num_gpu_blocks: int | None = None
    """Blocks as labelled: under data parallelism vLLM repeats the sum over all engines on each series."""
    block_size: int | None = None
    max_model_len: int | None = None
    """Derived: ``kv_cache_size_tokens / kv_cache_max_concurrency``."""
    cache_dtype: str | None = None
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool | None = None
    mixed_layers: bool = False
    """Some layers keep states or a window (labels ``mamba_…``, ``sliding_window``): blocks are no tokens of one kind of layer."""


class CounterTrait(Flag):
    """What else a counter of a `Snapshot` is good for."""

    PLAIN = 0
    TOKEN = auto()
    """Moves when a token comes out or a request ends: progress."""
    MOVES = auto()
    """Moves with every step of a living engine."""
    PROVES_RESET = auto()
    """Never falls but when the engine starts again; a histogram's sum may (vLLM #49135)."""
    BORN_LATE = auto()
    """Not exported before there is something to count (Ray; ``request_success`` of old vLLM)."""


def _counter(trait: CounterTrait = CounterTrait.PLAIN) -> Any:
    """A field that is a counter: absent unless scraped. `COUNTERS` lists them."""
    return field(default=None, metadata={"counter": trait})


_TOKEN: Final = CounterTrait.TOKEN | CounterTrait.MOVES | CounterTrait.PROVES_RESET


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One engine's numbers at one scrape. Counters are as scraped (resets still in); what is absent is ``None``."""

    engine: EngineId
    at: float
    running: float | None = None
    waiting: float | None = None
    waiting_deferred: float | None = None
    """Share of `waiting` that waits for remote KV, LoRA or grammar (vLLM >= 0.20)."""
    kv_usage: float | None = None
    """0..1, clamped; ``None`` when vLLM reported NaN or a negative number."""
    asleep: bool | None = None
    preemptions: float | None = _counter(CounterTrait.PROVES_RESET | CounterTrait.BORN_LATE)
    finished: float | None = _counter(_TOKEN | CounterTrait.BORN_LATE)
    """``request_success_total`` over all reasons."""
    generation_tokens: float | None = _counter(_TOKEN)
    prompt_tokens: float | None = _counter(_TOKEN)
    computed_prompt_tokens: float | None = _counter()
    """``prompt_tokens_by_source_total{source="local_compute"}``: prefill work really done."""
    steps: float | None = _counter(CounterTrait.MOVES | CounterTrait.PROVES_RESET)
    """``iteration_tokens_total_count``: engine steps that returned outputs."""
    step_tokens: float | None = _counter()
    """``iteration_tokens_total_sum``."""
    prefix_queries: float | None = _counter(CounterTrait.MOVES)
    prefix_hits: float | None = _counter()
    flops: float | None = _counter(CounterTrait.MOVES)
    """``estimated_flops_per_gpu_total``; ``None`` also while it is stuck at 0 because MFU metrics are off."""
    time_to_first_token: Histogram | None = None
    inter_token_latency: Histogram | None = None
    e2e_latency: Histogram | None = None
    queue_time: Histogram | None = None
    prompt_lengths: Histogram | None = None
    """``request_prompt_tokens`` over finished requests."""
    generation_lengths: Histogram | None = None
    prompt_length_sum: float | None = _counter()
    """``request_prompt_tokens_sum`` over finished requests, with `prompt_length_count`."""
    prompt_length_count: float | None = _counter()
    generation_length_sum: float | None = _counter()
    generation_length_count: float | None = _counter()
    prefill_time_sum: float | None = _counter()
    """``request_prefill_time_seconds_sum``: seconds from being scheduled to the first token, of finished requests."""
    created: float | None = None
    """The latest ``_created`` of this engine's counters (unix seconds): moves when they start again from zero."""
    config: EngineConfig = EngineConfig()


COUNTERS: Final[Mapping[str, CounterTrait]] = MappingProxyType(
    {one.name: one.metadata["counter"] for one in fields(Snapshot) if "counter" in one.metadata}
)
"""The counters of a `Snapshot` and their traits: history, windows and restarts derive from it."""
HISTOGRAMS: Final = tuple(one.name for one in fields(Snapshot) if one.type == "Histogram | None")
"""The histograms of a `Snapshot`."""


def counters_with(trait: CounterTrait) -> tuple[str, ...]:
    """The counters that have *trait*."""
    return tuple(name for name, own in COUNTERS.items() if trait in own)


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one successful scrape of a target said: a snapshot per engine, and what the API server says of itself."""

    at: float
    snapshots: tuple[Snapshot, ...]
    unix: float | None = None
    """When it was asked for, in unix seconds, to tell a process that has started since from one that ran before."""
    process_start_time: float | None = None
    process_cpu_seconds: float | None = None
    http_requests: float | None = None
    """``http_requests_total`` over the inference handlers but for what was refused (4xx): responses that ended, for whatever reason."""
    gpu_utilization: float | None = None
    """0..1 of the busiest GPU of this target, from a GPU exporter where one is configured."""
    vllm_version: str | None = None
    """As the server names it at ``/version``, where it was asked and has answered."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Signal -> the vLLM name that carried it, e.g. ``{"kv_usage": "vllm:gpu_cache_usage_perc"}``."""
    engines_dropped: int = 0
    """Engines on the page that are not among `snapshots`: beyond `MOST_ENGINES`, or with a name longer than any."""


@dataclass(frozen=True, slots=True)
class ScrapeFailure:
    """A scrape that gave no snapshots, and why."""

    at: float
    reason: FailureReason
    detail: str
    """One line for a person; never credentials, never more than a few hundred characters of the peer's text."""
