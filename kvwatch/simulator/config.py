"""What a simulated server is started with: vLLM's flags by their own names, and how long its steps take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvwatch.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepProfile:
    """How long one engine step takes, and what surrounds it; seconds unless said otherwise.

    A step takes the sum of the five ``base`` and ``per_…`` terms, times a lognormal factor of spread `jitter`.
    """

    name: str
    base: float
    """A step with nothing in it: scheduling, launches and, on a GPU, one read of the weights."""
    per_sequence: float
    """Each scheduled sequence: sampling, detokenising, its row of the batch."""
    per_prefill_token: float
    """Each prompt token computed in the step, recomputed ones included."""
    per_prefill_pair: float
    """Each pair of such a token and a token before it: attention, which makes long prompts dearer than their length."""
    per_context_token: float
    """Each token of KV that the step reads for its sequences."""
    turnaround: float
    """Mean time between an answer and the next request of the same client in a closed loop: API server, network and client; exponential."""
    jitter: float
    flops_per_token: float
    """For ``--enable-mfu-metrics``: about twice the number of weights."""
    frontend_cpu_per_token: float
    """Processor seconds the API server spends on each token it streams."""

    def step_seconds(self, *, sequences: int, prefill_tokens: int, prefill_pairs: float, context_tokens: int) -> float:
        """Duration of a step before jitter."""
        return (
            self.base
            + self.per_sequence * sequences
            + self.per_prefill_token * prefill_tokens
            + self.per_prefill_pair * prefill_pairs
            + self.per_context_token * context_tokens
        )


CPU_25M: Final = StepProfile(
    name="cpu-25m",
    base=0.0043,
    per_sequence=0.00038,
    per_prefill_token=0.000115,
    per_prefill_pair=0.115e-6,
    per_context_token=0.1e-6,
    turnaround=0.08,
    jitter=0.10,
    flops_per_token=5.06e7,
    frontend_cpu_per_token=0.00013,
)
"""The recordings' machine: a 25M-parameter model on two cores shared with its clients. Calibrated once, for all recordings together."""

GPU_8B: Final = StepProfile(
    name="gpu-8b",
    base=0.0090,
    per_sequence=0.00005,
    per_prefill_token=0.00008,
    per_prefill_pair=2.6e-9,
    per_context_token=65e-9,
    turnaround=0.03,
    jitter=0.05,
    flops_per_token=1.6e10,
    frontend_cpu_per_token=0.00006,
)
"""An 8B model in 16 bits on one GPU of 2 TB/s and 200 usable TFLOP/s.

16 GB of weights are read in 8 ms, 128 KiB of KV a token in 65 ns; a prompt token is 16 GFLOP, a pair in attention 0.5 MFLOP.
"""

PROFILES: Final = {profile.name: profile for profile in (CPU_25M, GPU_8B)}


class Names(StrEnum):
    """Whose metric names a server speaks; the scheduling is V1's under all of them."""

    CURRENT = "0.32"
    V1_EARLY = "v1-early"
    """vLLM 0.8.5 with the V1 engine: ``gpu_cache_usage_perc``, no ITL, ``num_gpu_blocks="None"``."""
    V0 = "v0"
    """vLLM 0.6: no ``engine`` label, swapped requests, throughput gauges."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The flags of the simulated server. Raises `UsageError` for what vLLM would refuse at start."""

    num_gpu_blocks: int = 4000
    """Per engine, as ``--num-gpu-blocks-override``; one of them is vLLM's null block and holds nothing."""
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    enable_prefix_caching: bool = True
    watermark: float = 0.0
    """Share of all blocks (0..1) that admission leaves to those that run; vLLM >= 0.24."""
    enable_mfu_metrics: bool = False
    disable_log_stats: bool = False
    data_parallel_size: int = 1
    """Engines behind the one ``/metrics``. More than one means as many API servers, as in vLLM since 0.15."""
    model_name: str = "demo-8b"
    names: Names = Names.CURRENT

    def __post_init__(self) -> None:
        for name in (
            "num_gpu_blocks",
            "block_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "data_parallel_size",
        ):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.watermark < 1:
            raise UsageError(f"watermark is a share of the blocks, at least 0 and below 1, not {self.watermark:g}")
        if self.names is Names.V0 and self.data_parallel_size > 1:
            raise UsageError("vLLM's V0 engine had no data parallelism: data_parallel_size must be 1 with names v0")
        if self.kv_cache_size_tokens - self.block_size < self.max_model_len:
            raise UsageError(
                f"one request of max_model_len {self.max_model_len} does not fit the KV cache: {self.num_gpu_blocks} blocks of "
                f"{self.block_size} hold {self.kv_cache_size_tokens - self.block_size} tokens; raise num_gpu_blocks or lower max_model_len"
            )

    @property
    def version(self) -> str:
        """What ``/version`` says."""
        return {Names.CURRENT: "0.32.0", Names.V1_EARLY: "0.8.5", Names.V0: "0.6.6"}[self.names]

    @property
    def kv_cache_size_tokens(self) -> int:
        """The KV pool of one engine in tokens, as vLLM reports it (the null block counted)."""
        return self.num_gpu_blocks * self.block_size
