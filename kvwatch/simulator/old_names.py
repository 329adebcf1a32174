"""The names older vLLMs exported, over the same counters: V1 as of 0.8.5 and V0 as of 0.6.6."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from kvwatch.simulator.counters import Distribution, EngineCounters
from kvwatch.simulator.families import Sample, counter, gauge, histogram
from kvwatch.simulator.simulation import Simulation

_Histograms = tuple[tuple[str, str, Callable[[EngineCounters], Distribution], int | None], ...]

# The last column cuts the edges to those of the time; the longer sets came with 0.8.4.
_SHARED_HISTOGRAMS: Final[_Histograms] = (
    ("request_prompt_tokens", "Number of prefill tokens processed.", lambda counters: counters.prompt_length, None),
    ("request_generation_tokens", "Number of generation tokens processed.", lambda counters: counters.generation_length, None),
    ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", lambda counters: counters.step_tokens, None),
    (
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        lambda counters: counters.max_tokens,
        None,
    ),
    ("request_params_n", "Histogram of the n request parameter.", lambda counters: counters.params_n, None),
    ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", lambda counters: counters.max_tokens, None),
    ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", lambda counters: counters.time_to_first_token, 16),
    ("time_per_output_token_seconds", "Histogram of time per output token in seconds.", lambda counters: counters.inter_token, 13),
    ("e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.", lambda counters: counters.e2e, 15),
    ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", lambda counters: counters.queue, 15),
    ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", lambda counters: counters.inference, 15),
    ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", lambda counters: counters.prefill, 15),
    ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", lambda counters: counters.decode, 15),
)


def v1_early_families(simulation: Simulation, created: float | None) -> Iterator[Metric]:
    """As vLLM 0.8.5 with the V1 engine: usage under its old name, prefix cache in blocks, ``num_gpu_blocks="None"``."""
    model = simulation.config.model_name
    labelled = [({"engine": str(index), "model_name": model}, engine.counters) for index, engine in enumerate(simulation.engines)]
    yield gauge(
        "vllm:num_requests_running",
        "Number of requests in model execution batches.",
        [(labels, counters.gauges.running) for labels, counters in labelled],
    )
    yield gauge(
        "vllm:num_requests_waiting",
        "Number of requests waiting to be processed.",
        [(labels, counters.gauges.waiting) for labels, counters in labelled],
    )
    yield gauge(
        "vllm:gpu_cache_usage_perc",
        "GPU KV-cache usage. 1 means 100 percent usage.",
        [(labels, counters.gauges.usage) for labels, counters in labelled],
    )
    block_size = simulation.config.block_size
    reads: tuple[tuple[str, str, Callable[[EngineCounters], float]], ...] = (
        (
            "gpu_prefix_cache_queries",
            "GPU prefix cache queries, in terms of number of queried blocks.",
            lambda counters: counters.prefix_queries // block_size,
        ),
        (
            "gpu_prefix_cache_hits",
            "GPU prefix cache hits, in terms of number of cached blocks.",
            lambda counters: counters.prefix_hits // block_size,
        ),
        ("num_preemptions", "Cumulative number of preemption from the engine.", lambda counters: counters.preemptions),
        ("prompt_tokens", "Number of prefill tokens processed.", lambda counters: counters.prompt_tokens),
        ("generation_tokens", "Number of generation tokens processed.", lambda counters: counters.generation_tokens),
    )
    for name, help_text, read in reads:
        yield counter(f"vllm:{name}", help_text, [(labels, read(counters)) for labels, counters in labelled], created)
    finished = [
        ({**labels, "finished_reason": reason}, counters.finished if reason == "length" else 0.0)
        for labels, counters in labelled
        for reason in ("stop", "length", "abort")
    ]
    yield counter("vllm:request_success", "Count of successfully processed requests.", finished, created)
    for name, help_text, read_distribution, _ in _SHARED_HISTOGRAMS:
        samples = [(labels, read_distribution(counters)) for labels, counters in labelled]
        yield histogram(f"vllm:{name}", help_text, samples, created)
    config = {
        **_config_labels(simulation),
        "cpu_offload_gb": "0.0",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": "None",
        "prefix_caching_hash_algo": "builtin",
        "swap_space": "4.0",
    }
    yield gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", [(config, 1.0)])


def v0_families(simulation: Simulation) -> Iterator[Metric]:
    """As vLLM 0.6.6: no `engine` label, swapped requests, no ``_created``, reasons that appear with their first request."""
    model = {"model_name": simulation.config.model_name}
    counters = simulation.engines[0].counters
    config = {**_config_labels(simulation), "num_cpu_blocks": "2048", "num_gpu_blocks": str(simulation.config.num_gpu_blocks)}
    yield gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", [(config, 1.0)])
    for name, help_text, value in (
        ("num_requests_running", "Number of requests currently running on GPU.", counters.gauges.running),
        ("num_requests_waiting", "Number of requests waiting to be processed.", counters.gauges.waiting),
        ("num_requests_swapped", "Number of requests swapped to CPU.", 0.0),
        ("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", counters.gauges.usage),
        ("cpu_cache_usage_perc", "CPU KV-cache usage. 1 means 100 percent usage.", 0.0),
        ("gpu_prefix_cache_hit_rate", "GPU prefix cache block hit rate.", _hit_rate(simulation)),
        ("cpu_prefix_cache_hit_rate", "CPU prefix cache block hit rate.", -1.0),
    ):
        yield gauge(f"vllm:{name}", help_text, [(model, value)])
    for name, help_text, value in (
        ("num_preemptions", "Cumulative number of preemption from the engine.", counters.preemptions),
        ("prompt_tokens", "Number of prefill tokens processed.", counters.prompt_tokens),
        ("generation_tokens", "Number of generation tokens processed.", counters.generation_tokens),
    ):
        yield counter(f"vllm:{name}", help_text, [(model, value)], None)
    finished: list[Sample] = [({**model, "finished_reason": "length"}, counters.finished)] if counters.finished else []
    yield counter("vllm:request_success", "Count of successfully processed requests.", finished, None)
    for name, help_text, read, edges in _SHARED_HISTOGRAMS:
        distribution = read(counters)
        yield histogram(f"vllm:{name}", help_text, [(model, distribution if edges is None else _cut(distribution, edges))], None)


def _hit_rate(simulation: Simulation) -> float:
    """-1 when prefix caching is off, as V0 reported it."""
    counters = simulation.engines[0].counters
    if not simulation.config.enable_prefix_caching:
        return -1.0
    return counters.prefix_hits / counters.prefix_queries if counters.prefix_queries else 0.0


def _cut(distribution: Distribution, edges: int) -> Distribution:
    """The same observations in only the first `edges` buckets and ``+Inf``."""
    shorter = Distribution(distribution.bounds[:edges])
    shorter.counts = [*distribution.counts[:edges], sum(distribution.counts[edges:])]
    shorter.sum = distribution.sum
    return shorter


def _config_labels(simulation: Simulation) -> dict[str, str]:
    return {
        "block_size": str(simulation.config.block_size),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(simulation.config.enable_prefix_caching),
        "gpu_memory_utilization": "0.9",
        "is_attention_free": "False",
        "num_gpu_blocks_override": str(simulation.config.num_gpu_blocks),
        "sliding_window": "None",
    }
