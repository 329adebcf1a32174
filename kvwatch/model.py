"""The vocabulary of kvwatch: every room speaks in these words and in no others.

Values only. Nothing here reads a clock, does I/O or imports anything of ours. An absent number is ``None``; it is
never 0, NaN or -1. Times called ``at`` are seconds of one monotonic clock (live) or of the recording (replay); they
may be subtracted from one another and mean nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """What holds an engine back."""

    HEALTHY = "healthy"
    KV_BOUND = "kv_bound"
    COMPUTE_BOUND = "compute_bound"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    """Why an engine is in its state. The set is closed; `CAUSES` says which cause belongs to which state."""

    OK = "ok"
    IDLE = "idle"
    KV_HIGH = "kv_high"
    PREEMPTING = "preempting"
    ADMISSION = "admission"
    SEQUENCE_SLOTS = "sequence_slots"
    STEP_BUDGET = "step_budget"
    COMPUTE = "compute"
    FRONTEND = "frontend"
    DEFERRED = "deferred"
    STALLED = "stalled"
    WARMING_UP = "warming_up"
    UNREACHABLE = "unreachable"
    STALE = "stale"
    NO_VLLM_METRICS = "no_vllm_metrics"
    STATS_DISABLED = "stats_disabled"
    ASLEEP = "asleep"
    AMBIGUOUS = "ambiguous"


CAUSES: Final[Mapping[State, tuple[Cause, ...]]] = MappingProxyType(
    {
        State.HEALTHY: (Cause.OK, Cause.IDLE, Cause.KV_HIGH),
        State.KV_BOUND: (Cause.PREEMPTING, Cause.ADMISSION),
        State.COMPUTE_BOUND: (
            Cause.SEQUENCE_SLOTS,
            Cause.STEP_BUDGET,
            Cause.COMPUTE,
            Cause.FRONTEND,
            Cause.DEFERRED,
            Cause.STALLED,
        ),
        State.UNKNOWN: (
            Cause.WARMING_UP,
            Cause.UNREACHABLE,
            Cause.STALE,
            Cause.NO_VLLM_METRICS,
            Cause.STATS_DISABLED,
            Cause.ASLEEP,
            Cause.AMBIGUOUS,
        ),
    }
)


class FailureReason(StrEnum):
    """Why a scrape gave no snapshots. The set is closed: it is a metric label, a log field and a recording's ``error``."""

    DNS = "dns"
    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"
    TLS = "tls"
    HTTP_STATUS = "http_status"
    REDIRECT = "redirect"
    TOO_LARGE = "too_large"
    ENCODING = "encoding"
    PARSE = "parse"
    EMPTY = "empty"
    NOT_METRICS = "not_metrics"
    NO_VLLM_METRICS = "no_vllm_metrics"
    STATS_DISABLED = "stats_disabled"
    INTERNAL = "internal"


class Severity(StrEnum):
    """How much of a person's attention an alert asks for; ``critical`` is a page."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class EngineId:
    """One engine behind a target: a ``(model_name, engine)`` series, that is one data-parallel rank."""

    model_name: str
    engine: str


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
    preemptions: float | None = None
    finished: float | None = None
    """``request_success_total`` over all reasons."""
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    computed_prompt_tokens: float | None = None
    """``prompt_tokens_by_source_total{source="local_compute"}``: prefill work really done."""
    steps: float | None = None
    """``iteration_tokens_total_count``: engine steps that returned outputs."""
    step_tokens: float | None = None
    """``iteration_tokens_total_sum``."""
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    flops: float | None = None
    """``estimated_flops_per_gpu_total``; ``None`` also while it is stuck at 0 because MFU metrics are off."""
    time_to_first_token: Histogram | None = None
    inter_token_latency: Histogram | None = None
    e2e_latency: Histogram | None = None
    prompt_length_sum: float | None = None
    """``request_prompt_tokens_sum`` over finished requests, with `prompt_length_count`."""
    prompt_length_count: float | None = None
    generation_length_sum: float | None = None
    generation_length_count: float | None = None
    prefill_time_sum: float | None = None
    prefill_time_count: float | None = None
    created: float | None = None
    """The latest ``_created`` of this engine's counters (unix seconds): moves when they start again from zero."""
    config: EngineConfig = EngineConfig()


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one successful scrape of a target said: a snapshot per engine, and what the API server says of itself."""

    at: float
    snapshots: tuple[Snapshot, ...]
    process_start_time: float | None = None
    process_cpu_seconds: float | None = None
    http_requests: float | None = None
    """``http_requests_total`` over the inference handlers: responses that ended, for whatever reason."""
    gpu_utilization: float | None = None
    """0..1 of the busiest GPU of this target, from a GPU exporter where one is configured."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Signal -> the vLLM name that carried it, e.g. ``{"kv_usage": "vllm:gpu_cache_usage_perc"}``."""


@dataclass(frozen=True, slots=True)
class ScrapeFailure:
    """A scrape that gave no snapshots, and why."""

    at: float
    reason: FailureReason
    detail: str
    """One line for a person; never credentials, never more than a few hundred characters of the peer's text."""


@dataclass(frozen=True, slots=True)
class GaugeStats:
    """A gauge over a window: mean, lowest, peak and last sample."""

    mean: float
    low: float
    peak: float
    last: float


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of a latency in seconds over a window, estimated from bucket increases as PromQL's ``histogram_quantile`` does."""

    p50: float
    p95: float
    p99: float
    mean: float | None
    count: float


@dataclass(frozen=True, slots=True)
class Window:
    """What the snapshots of one window say; counter increases have resets already taken out.

    ``seconds`` is the time between the first and the last snapshot in it (0 with one snapshot: then every increase is ``None``).
    """

    seconds: float
    samples: int
    running: GaugeStats | None = None
    waiting: GaugeStats | None = None
    queue: GaugeStats | None = None
    """Requests waiting for capacity: `waiting` less those deferred for remote KV, LoRA or grammar."""
    queued_share: float | None = None
    """Share of the samples in which `queue` was not empty."""
    deferred: GaugeStats | None = None
    kv_usage: GaugeStats | None = None
    preemptions: float | None = None
    finished: float | None = None
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    computed_prompt_tokens: float | None = None
    steps: float | None = None
    step_tokens: float | None = None
    preemption_ratio: float | None = None
    """DESIGN section 2: ``preemptions / max(preemptions + finished, mean running)``; ``None`` while the denominator is 0."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """A smaller batch got as much work done as the present one: the processor is the limit."""

    running_then: float
    tokens_per_second_then: float
    running_now: float
    tokens_per_second_now: float


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything the classifier, the advice and the exporter need to know of one engine at one moment."""

    at: float
    recent: Window
    """15 s (or one poll, if that is longer): what decides the state."""
    fast: Window
    """30 s (or two polls, if that is longer): ends the page when the storm ends."""
    slow: Window
    """2 min: makes it worth waking someone."""
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    idle: bool = False
    """The last two scrapes saw no request, running or waiting, and no token came out between them."""
    clients_left: bool = False
    """Since anything moved, at least as many HTTP responses ended without a finished request as are said to run or wait."""
    capacity_tokens: int | None = None
    free_tokens: float | None = None
    tokens_per_sequence: float | None = None
    """KV tokens a running sequence holds on average, from usage x pool / running over the slow window."""
    next_prompt_tokens: float | None = None
    """KV tokens the next request is expected to need to be admitted: the mean prompt admitted lately."""
    output_tokens: float | None = None
    """Mean tokens generated per finished request lately."""
    demand_ratio: float | None = None
    """(running + waiting) x tokens per sequence / pool; above 1 one replica is not enough."""
    sustainable_sequences: int | None = None
    """Sequences of the observed size that fit the pool with 20 % headroom."""
    seconds_to_full: float | None = None
    generation_tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None
    recompute_ratio: float | None = None
    """Estimated share of the computed tokens that were computed before and thrown away."""
    prefix_hit_ratio: float | None = None
    time_to_first_token: Quantiles | None = None
    inter_token_latency: Quantiles | None = None
    e2e_latency: Quantiles | None = None
    process_cpu_ratio: float | None = None
    """Cores used by the API server process (``process_cpu_seconds_total`` per second)."""
    gpu_utilization: float | None = None
    running_ceiling: float | None = None
    """max_num_seqs as given, or the highest count seen since the engine started, which max_num_seqs cannot be below."""
    at_ceiling_share: float | None = None
    """Share of the fast window's samples with a queue in which `running` stood at that ceiling."""
    running_while_queued: float | None = None
    """Mean of `running` over the fast window's samples with a queue: the batch since the trouble began."""
    sequence_share: float | None = None
    """Share of the pool one running sequence holds (usage / running, mean over the fast window)."""
    step_token_budget: int | None = None
    """max_num_batched_tokens as given; ``None`` where nobody said."""
    sequences_per_step: float | None = None
    """Sequences that got a token in a mean step, from counters: how large the batch really was, whatever the gauges caught."""
    sequences_prefilling: float | None = None
    """Running sequences that got no token in a mean step."""
    prefill_token_share: float | None = None
    """Share of the tokens computed in the fast window that were prompt tokens."""
    saturation: Saturation | None = None
    seconds_without_progress: float | None = None
    """Time since any token counter moved while there was work; ``None`` without work."""
    seconds_without_life: float | None = None
    """Time since any number of this engine moved at all, gauges included, while there was work."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer about one engine: state, cause, the numbers that decided, and since when."""

    engine: EngineId | None
    """``None`` while no engine of the target is known."""
    state: State
    cause: Cause
    evidence: tuple[str, ...]
    since: float
    """`at` of the scrape at which this state began."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that is firing for one engine (or, without engine, for a target)."""

    name: str
    severity: Severity
    since: float
    summary: str
    description: str


@dataclass(frozen=True, slots=True)
class Change:
    """One piece of advice: change one thing, measure again."""

    lever: str
    """The flag or the action, e.g. ``--max-num-seqs`` or ``add replicas``."""
    current: str | None
    proposed: str | None
    reason: str
    """The arithmetic in one sentence."""
    effect: str
    caution: str


@dataclass(frozen=True, slots=True)
class KnownConfig:
    """What the operator knows and ``/metrics`` does not say; ``None`` where nobody said."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    kv_cache_tokens: int | None = None
    vllm_version: str | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    """Everything kvwatch says of one engine after one scrape."""

    verdict: Verdict
    signals: Signals | None
    """``None`` where the scrape failed or nothing can be said yet."""
    alerts: tuple[Alert, ...] = ()
    advice: tuple[Change, ...] = ()
    config: EngineConfig = EngineConfig()
    """What the engine says of its own cache."""
    state_seconds: Mapping[State, float] = field(default_factory=dict)
    """Seconds this engine has been seen in each state since it is known; every member present once an engine is known."""
    transitions: int = 0
    """State changes since this engine is known."""


@dataclass(frozen=True, slots=True)
class TargetView:
    """The last word on one target: what the exporter serves until the next one replaces it. Immutable."""

    name: str
    url: str
    interval: float
    """Seconds between polls, to judge staleness at collect time."""
    at: float | None
    """Monotonic time of the last finished poll, ``None`` before the first."""
    last_success_at: float | None = None
    last_success_unix: float | None = None
    scrape_seconds: float | None = None
    failure: ScrapeFailure | None = None
    """The last poll's failure; ``None`` when it succeeded."""
    assessments: tuple[Assessment, ...] = ()
    alerts: tuple[Alert, ...] = ()
    """Alerts about the target itself (``TargetDown``)."""
    sources: Mapping[str, str] = field(default_factory=dict)
