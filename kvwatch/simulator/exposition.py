"""The `/metrics` text of a simulated server, in the names, labels, types, HELP and bucket edges of vLLM 0.32.

Family order, labels and texts are those of the recorded bodies; `old_names` has the older ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from kvwatch.simulator.cache_config import cache_config_labels
from kvwatch.simulator.config import Names
from kvwatch.simulator.counters import Distribution, EngineCounters
from kvwatch.simulator.engine import Engine
from kvwatch.simulator.families import Sample, counter, gauge, histogram, render
from kvwatch.simulator.old_names import v0_families, v1_early_families
from kvwatch.simulator.process import http_families, process_families
from kvwatch.simulator.simulation import Simulation

FINISHED_REASONS: Final = ("stop", "length", "abort", "error", "repetition")

_Children = Callable[[Engine], list[Sample]]


def _one(read: Callable[[EngineCounters], float]) -> _Children:
    return lambda engine: [({}, read(engine.counters))]


def _zero(_: EngineCounters) -> float:
    return 0.0


_PROMPT_SOURCES: Final = "Number of prompt tokens by source."
_TIERS: Final = (
    "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, p2p (transferred "
    "from another vLLM instance) or external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + "
    "vllm:external_prefix_cache_hits."
)
_EXTERNAL: Final = "from KV connector cross-instance cache sharing, in terms of number of"


def _prompt_sources(engine: Engine) -> list[Sample]:
    counters = engine.counters
    return [
        ({"source": "local_compute"}, counters.prompt_tokens - counters.cached_prompt_tokens),
        ({"source": "local_cache_hit"}, counters.cached_prompt_tokens),
        ({"source": "external_kv_transfer"}, 0.0),
    ]


def _tiers(engine: Engine) -> list[Sample]:
    hits = engine.counters.prefix_hits
    return [({"source": tier}, hits if tier == "device" else 0.0) for tier in ("device", "host", "p2p", "disk", "external_unspecified")]


def _finished(engine: Engine) -> list[Sample]:
    """Clients that hang up are in no child: vLLM's `abort` stays at 0 for them."""
    return [({"finished_reason": reason}, engine.counters.finished if reason == "length" else 0.0) for reason in FINISHED_REASONS]


_FLOPS: Final[tuple[tuple[str, str, _Children], ...]] = (
    (
        "estimated_flops_per_gpu",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
        _one(lambda counters: counters.flops),
    ),
    (
        "estimated_read_bytes_per_gpu",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
        _one(_zero),
    ),
    (
        "estimated_write_bytes_per_gpu",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
        _one(_zero),
    ),
)

_COUNTERS: Final[tuple[tuple[str, str, _Children], ...]] = (
    ("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", _one(lambda counters: counters.prefix_queries)),
    ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", _one(lambda counters: counters.prefix_hits)),
    ("external_prefix_cache_queries", f"External prefix cache queries {_EXTERNAL} queried tokens.", _one(_zero)),
    ("external_prefix_cache_hits", f"External prefix cache hits {_EXTERNAL} cached tokens.", _one(_zero)),
    ("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", _one(_zero)),
    ("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", _one(_zero)),
    ("num_preemptions", "Cumulative number of preemption from the engine.", _one(lambda counters: counters.preemptions)),
    ("prompt_tokens", "Number of prefill tokens processed.", _one(lambda counters: counters.prompt_tokens)),
    ("prompt_tokens_by_source", _PROMPT_SOURCES, _prompt_sources),
    ("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", _one(lambda counters: counters.cached_prompt_tokens)),
    ("prompt_tokens_cached_by_source", _TIERS, _tiers),
    ("generation_tokens", "Number of generation tokens processed.", _one(lambda counters: counters.generation_tokens)),
    ("request_success", "Count of successfully processed requests.", _finished),
)

_HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[EngineCounters], Distribution]], ...]] = (
    ("request_prompt_tokens", "Number of prefill tokens processed.", lambda counters: counters.prompt_length),
    ("request_generation_tokens", "Number of generation tokens processed.", lambda counters: counters.generation_length),
    ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", lambda counters: counters.step_tokens),
    (
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        lambda counters: counters.max_tokens,
    ),
    ("request_params_n", "Histogram of the n request parameter.", lambda counters: counters.params_n),
    ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", lambda counters: counters.max_tokens),
    ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", lambda counters: counters.time_to_first_token),
    ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", lambda counters: counters.inter_token),
    (
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        lambda counters: counters.time_per_output_token,
    ),
    ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", lambda counters: counters.e2e),
    ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", lambda counters: counters.queue),
    ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", lambda counters: counters.inference),
    ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", lambda counters: counters.prefill),
    ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", lambda counters: counters.decode),
    (
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        lambda counters: counters.request_preemptions,
    ),
    (
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        lambda counters: counters.computed_prompt_length,
    ),
)

_WAITING_BY_REASON: Final = (
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient "
    "constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting."
)
_SLEEP_STATE: Final = (
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep level 1; "
    "discard_all = 1 means sleep level 2."
)


def expose(simulation: Simulation) -> str:
    """The text `/metrics` has at the simulation's present moment, in the names the server was configured with."""
    several = simulation.config.data_parallel_size > 1
    created = None if several else simulation.started_unix
    families: list[Metric] = []
    if not simulation.config.disable_log_stats:
        match simulation.config.names:
            case Names.CURRENT:
                families += _vllm_families(simulation, created)
            case Names.V1_EARLY:
                families += v1_early_families(simulation, created)
            case Names.V0:
                families += v0_families(simulation)
    if simulation.config.names is not Names.V0:
        families += http_families(simulation, created)
    if several:
        # More than one API server means prometheus_client's multiprocess mode: sorted by type, nothing about the process.
        order = ("counter", "summary", "histogram", "gauge")
        families.sort(key=lambda family: order.index(family.type))
    else:
        families = [*process_families(simulation), *families]
    return render(families)


def _vllm_families(simulation: Simulation, created: float | None) -> Iterator[Metric]:
    model = {"model_name": simulation.config.model_name}
    labelled = [({"engine": str(index), **model}, engine) for index, engine in enumerate(simulation.engines)]

    def counters(table: tuple[tuple[str, str, _Children], ...]) -> Iterator[Metric]:
        for name, help_text, children in table:
            samples = [({**labels, **extra}, value) for labels, engine in labelled for extra, value in children(engine)]
            yield counter(f"vllm:{name}", help_text, samples, created)

    yield from counters(_FLOPS)
    yield from _gauges(labelled, asleep=simulation.asleep)
    yield from counters(_COUNTERS)
    rejections = [({**model, "reason": reason}, 0.0) for reason in ("max_num_queued_reqs", "max_num_queued_tokens")]
    yield counter("vllm:admission_rejections", "Number of admission attempts rejected by a queue limit, by reason.", rejections, created)
    for name, help_text, read in _HISTOGRAMS:
        yield histogram(f"vllm:{name}", help_text, [(labels, read(engine.counters)) for labels, engine in labelled], created)
    config_labels = cache_config_labels(simulation.config)
    yield gauge(
        "vllm:cache_config_info",
        "Information of the LLMEngine CacheConfig",
        [({**config_labels, "engine": labels["engine"]}, 1.0) for labels, _ in labelled],
    )


def _gauges(labelled: list[tuple[dict[str, str], Engine]], *, asleep: bool) -> Iterator[Metric]:
    yield gauge(
        "vllm:num_requests_running",
        "Number of requests in model execution batches.",
        [(labels, engine.counters.gauges.running) for labels, engine in labelled],
    )
    waiting = [(labels, engine.counters.gauges.waiting) for labels, engine in labelled]
    yield gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting)
    by_reason = [
        ({**labels, "reason": reason}, float(value))
        for labels, engine in labelled
        for reason, value in (
            ("capacity", engine.counters.gauges.waiting - engine.counters.gauges.deferred),
            ("deferred", engine.counters.gauges.deferred),
        )
    ]
    yield gauge("vllm:num_requests_waiting_by_reason", _WAITING_BY_REASON, by_reason)
    sleep = [
        ({**labels, "sleep_state": state}, float(on))
        for labels, _ in labelled
        for state, on in (("awake", not asleep), ("weights_offloaded", asleep), ("discard_all", False))
    ]
    yield gauge("vllm:engine_sleep_state", _SLEEP_STATE, sleep)
    yield gauge(
        "vllm:kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        [(labels, engine.counters.gauges.usage) for labels, engine in labelled],
    )
