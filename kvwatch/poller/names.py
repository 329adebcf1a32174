"""The one table of vLLM's metric names: a rename in a future vLLM is one line here.

Names are written without their prefix (``vllm:``, ``vllm_``, ``ray_vllm:``, ``kserve_vllm:``, …) and without the suffix that a type
adds (``_total``, ``_bucket``, ``_sum``, ``_count``, ``_created``). Where a signal had several names the first one found wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple


class Kind(Enum):
    """What carries a signal: the endings of its samples, in order of preference."""

    GAUGE = ("",)
    COUNTER = ("_total", "")
    """Ray exports a counter twice, with and without ``_total``: two names of one number, the first counts."""
    HISTOGRAM = ("_bucket", "_count", "_sum")
    """All of them together."""
    COUNT = ("_count",)
    """Only the number of observations of a histogram."""
    SUM = ("_sum",)
    """Only the sum of a histogram."""


@dataclass(frozen=True, slots=True)
class SignalName:
    """A field of `Snapshot` and the families that carry it, the preferred one first."""

    name: str
    kind: Kind
    families: tuple[str, ...]
    part: str | None = None
    """Only the series with this value of the family's own label (``reason``, ``source``, ``sleep_state``); ``None`` adds all up."""

    @property
    def samples(self) -> tuple[str, ...]:
        """The sample names to look for, in order."""
        return tuple(family + ending for family in self.families for ending in self.kind.value)


SIGNALS: Final = (
    # field of Snapshot, kind, families                        since - until
    SignalName("running", Kind.GAUGE, ("num_requests_running",)),  # 0.2.7 -
    SignalName("waiting", Kind.GAUGE, ("num_requests_waiting",)),  # 0.2.7 -
    SignalName("waiting_deferred", Kind.GAUGE, ("num_requests_waiting_by_reason",), part="deferred"),  # 0.20.0 -
    SignalName(
        "kv_usage",
        Kind.GAUGE,
        (
            "kv_cache_usage_perc",  # V1 0.9.2 -
            "gpu_cache_usage_perc",  # V0 0.2.7 - 0.10.2, V1 0.7.1 - 0.10.2, hidden in 0.11
        ),
    ),
    SignalName("asleep", Kind.GAUGE, ("engine_sleep_state",), part="awake"),  # 0.11.1 -
    SignalName("preemptions", Kind.COUNTER, ("num_preemptions",)),  # V0 0.4.3 - 0.10.2, V1 0.8.0 -
    SignalName("finished", Kind.COUNTER, ("request_success",)),  # V0, V1 0.7.2 -
    SignalName("generation_tokens", Kind.COUNTER, ("generation_tokens",)),  # V0 0.3.3, V1 0.7.1 -
    SignalName("prompt_tokens", Kind.COUNTER, ("prompt_tokens",)),  # V0 0.3.3, V1 0.7.1 -
    SignalName("computed_prompt_tokens", Kind.COUNTER, ("prompt_tokens_by_source",), part="local_compute"),  # 0.16.0 -
    SignalName("steps", Kind.COUNT, ("iteration_tokens_total",)),  # V0 0.6.4, V1 0.7.3 -: a histogram in spite of its name
    SignalName("step_tokens", Kind.SUM, ("iteration_tokens_total",)),
    SignalName(
        "prefix_queries",
        Kind.COUNTER,
        (
            "prefix_cache_queries",  # V1 0.9.2 -
            "gpu_prefix_cache_queries",  # V1 0.7.3 - 0.10.2, hidden in 0.11
        ),
    ),
    SignalName(
        "prefix_hits",
        Kind.COUNTER,
        (
            "prefix_cache_hits",  # V1 0.9.2 -
            "gpu_prefix_cache_hits",  # V1 0.7.3 - 0.10.2, hidden in 0.11
        ),
    ),
    SignalName("flops", Kind.COUNTER, ("estimated_flops_per_gpu",)),  # 0.17.0 -
    SignalName("time_to_first_token", Kind.HISTOGRAM, ("time_to_first_token_seconds",)),  # V0 0.3.3, V1 0.7.1 -
    SignalName(
        "inter_token_latency",
        Kind.HISTOGRAM,
        (
            "inter_token_latency_seconds",  # 0.10.2 -
            "time_per_output_token_seconds",  # V0 0.3.3, V1 0.7.1 - 0.11.2, hidden until 0.14
        ),
    ),
    SignalName("queue_time", Kind.HISTOGRAM, ("request_queue_time_seconds",)),  # V0 0.6.5, V1 0.8.0 -
    SignalName("e2e_latency", Kind.HISTOGRAM, ("e2e_request_latency_seconds",)),  # V0 0.3.3, V1 0.7.3 -
    SignalName("prompt_length_sum", Kind.SUM, ("request_prompt_tokens",)),  # V0 0.4.2, V1 0.7.1 -
    SignalName("prompt_length_count", Kind.COUNT, ("request_prompt_tokens",)),
    SignalName("generation_length_sum", Kind.SUM, ("request_generation_tokens",)),  # V0 0.4.2, V1 0.7.1 -
    SignalName("generation_length_count", Kind.COUNT, ("request_generation_tokens",)),
    SignalName("prompt_lengths", Kind.HISTOGRAM, ("request_prompt_tokens",)),
    SignalName("generation_lengths", Kind.HISTOGRAM, ("request_generation_tokens",)),
    SignalName("prefill_time_sum", Kind.SUM, ("request_prefill_time_seconds",)),  # V0 0.6.4, V1 0.7.3 -
)

CONFIG: Final = "cache_config_info"  # V0 0.3.3, V1 0.8.0 -
CREATED: Final = ("num_preemptions_created", "prompt_tokens_created", "generation_tokens_created")
"""Counters without labels of their own, so that all of them exist from the start and a later ``_created`` means a reset."""

CORE: Final = frozenset(
    sample for signal in SIGNALS if signal.name in ("running", "waiting", "kv_usage", "generation_tokens") for sample in signal.samples
)
"""Samples that prove an engine."""

PROCESS_START: Final = "process_start_time_seconds"
PROCESS_CPU: Final = "process_cpu_seconds_total"
HTTP_REQUESTS: Final = "http_requests_total"
SERVER: Final = frozenset((PROCESS_START, PROCESS_CPU, HTTP_REQUESTS))
"""What the API server says of itself; no engine, no prefix."""

ENGINE_SAMPLES: Final = frozenset((CONFIG, *CREATED, *(sample for signal in SIGNALS for sample in signal.samples)))


class WireName(NamedTuple):
    """A sample name as it came: ``ray_vllm:`` and ``num_requests_running``."""

    prefix: str
    sample: str


_LONGEST: Final = 200
"""Characters of a sample's name; vLLM's longest has 60, and what is longer is not worth remembering."""


def resolve(name: str) -> WireName | None:
    """What a sample name means to us, ``None`` when nothing."""
    if "vllm" in name:
        return _resolve_vllm(name) if len(name) <= _LONGEST else None
    return WireName("", name) if name in SERVER else None


@lru_cache(maxsize=4096)
def _resolve_vllm(name: str) -> WireName | None:
    """Any relabelled ``<x>_vllm:`` or ``<x>_vllm_`` will do; ``vllm_omni:`` and the like are other products and match no sample."""
    before, _, after = name.partition("vllm")
    sample = after[1:]
    if (before and not before.endswith("_")) or after[:1] not in (":", "_") or sample not in ENGINE_SAMPLES:
        return None
    return WireName(f"{before}vllm{after[0]}", sample)
