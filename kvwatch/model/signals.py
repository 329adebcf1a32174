"""What windows of snapshots say, resets taken out: everything the classifier, the advice and the exporter need to know."""

from __future__ import annotations

from dataclasses import dataclass


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

    ``seconds`` is the time between the first and the last snapshot in it (two at least).
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
    preemption_ratio: float | None = None
    """``preemptions / max(preemptions + finished, mean running)``; ``None`` while the denominator is 0."""


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
    """2 min, up to fifteen seconds more: makes it worth waking someone."""
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
    tokens_at_end: float | None = None
    """KV tokens a request holds when its last one is written, with its part of what requests share."""
    demand_ratio: float | None = None
    """(running + waiting) x tokens per sequence / pool; above 1 one replica is not enough."""
    lasting_demand_ratio: float | None = None
    """The same of the median of (running + waiting) over the slow window: what a single scrape saw neither makes it nor breaks it."""
    sustainable_sequences: int | None = None
    """How many may run at once without preempting one another; where fewer or more are advised for the cache's sake, the same number."""
    sustainable_arithmetic: str | None = None
    """How that was worked out."""
    seconds_to_full: float | None = None
    generation_tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None
    recompute_ratio: float | None = None
    """Estimated share of the computed tokens that were computed before and thrown away."""
    prefix_hit_ratio: float | None = None
    time_to_first_token: Quantiles | None = None
    inter_token_latency: Quantiles | None = None
    e2e_latency: Quantiles | None = None
    queue_time: Quantiles | None = None
    """From arrival until a request first runs."""
    process_cpu_ratio: float | None = None
    """Cores used by the API server process (``process_cpu_seconds_total`` per second)."""
    gpu_utilization: float | None = None
    running_ceiling: float | None = None
    """max_num_seqs as given, or the highest count seen since the engine started, which max_num_seqs cannot be below."""
    at_ceiling_share: float | None = None
    """Share of the fast window's samples with a queue in which `running` stood at that ceiling."""
    running_plateau: float | None = None
    """The count `running` had in all of the fast window's samples with a queue, where that is below the max_num_seqs that was given."""
    usage_at_ceiling: float | None = None
    """The second lowest KV usage of those samples: at that moment slots were taken, and the rest of the cache was not."""
    running_while_queued: float | None = None
    """Mean of `running` over the fast window's samples with a queue: the batch since the trouble began."""
    sequence_share: float | None = None
    """Share of the pool one running sequence holds: (usage - held at rest) / running, in the largest batches of the fast window."""
    step_token_budget: int | None = None
    """max_num_batched_tokens as given; ``None`` where nobody said."""
    sequences_decoding: float | None = None
    """Sequences that got tokens at one time, from counters: how large the batch really was, whatever the gauges caught."""
    sequences_prefilling: float | None = None
    """Running sequences that got no token at that time."""
    sequences_recomputing: float | None = None
    """Running sequences that got no token in the fast window although no prompt came to its first one: they are computed again."""
    sequences_held: float | None = None
    """Sequences that held blocks at one time, in their prefill or decoding, from counters."""
    tokens_per_step: float | None = None
    """Tokens computed in a mean step of the fast window (only the mean: a prompt counts as a whole in the step of its first token)."""
    prefill_token_share: float | None = None
    """Share of the tokens computed in the fast window that were prompt tokens."""
    saturation: Saturation | None = None
    slowdown: Saturation | None = None
    """The same batch with contexts as long once got several times as much work done: the engine crawls."""
    queued_seconds: float = 0.0
    """For how long every scrape has found a request waiting for capacity."""
    cool_seconds: float | None = None
    """For how long every scrape has found no request waiting, none preempted and the cache below 70 %; ``None`` while not."""
    preempted: float | None = None
    """Preemptions in the slow window: those counted, or those seen in the gauges where the counter lags behind or misses them."""
    preempted_lately: float | None = None
    """The same in the fast window."""
    preempted_share: float | None = None
    """Share of the requests leaving the running batch in the slow window that were preempted, by `preempted`."""
    held_at_rest: float | None = None
    """Share of the pool that is held by nobody running: what was held when nothing ran or waited, and no more than is held now."""
    held_beyond: float | None = None
    """Share of the pool held beyond what requests as long as those that finished in the slow window explain; ``None`` where none is."""
    stall_patience: float = 0.0
    """Seconds without any movement that may still be one of this engine's own slow steps."""
    longest_step: float = 0.0
    """Seconds that this engine's longest step of late took without any number moving."""
    ceiling_known: bool = False
    """Whether `running_ceiling` is max_num_seqs as given."""
    ceiling_proven: bool = False
    """Whether a queue was once confirmed to stand at that count although the cache had room, and no larger batch was seen since."""
    seconds_without_progress: float | None = None
    """Time since any token counter moved or a prompt got further (the cache grew) while there was work; ``None`` without work."""
    seconds_without_life: float | None = None
    """Time since any number of this engine moved at all, gauges included, while there was work."""

    @property
    def waits_for_others(self) -> bool:
        """Nothing runs and all that waits is deferred (remote KV, LoRA adapters, grammars): there is nothing to step for."""
        deferred = self.recent.deferred
        return self.running == 0 and deferred is not None and deferred.last > 0 and deferred.last == self.waiting
