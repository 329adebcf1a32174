"""What a plan is made of: what is known, one column for each way to serve it, and the arithmetic between them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvwatch.capacity.architecture import KvLayout, kv_layout
from kvwatch.capacity.pool import memory_for_kv, safe_sequences, sequences

ACTIVATIONS: Final = 2 * 2**30
"""Bytes of a GPU that activations and CUDA graphs take, about (playbook)."""
OTHER: Final = 2**30
"""Bytes lost to fragmentation and the CUDA context, about (playbook)."""
UTILIZATION: Final = 0.92
"""vLLM's own default from 0.20 on (0.9 before)."""
_FOUR_BIT: Final = 5 / 14
"""14 GB of 16-bit weights are about 5 GB in 4 bits (playbook): embeddings and scales stay wider."""


@dataclass(frozen=True, slots=True)
class Serving:
    """One way to serve a model: everything the arithmetic needs. Sizes in bytes."""

    model: Mapping[str, object]
    max_model_len: int
    kv_cache_dtype: str = "auto"
    gpus: int = 1
    """Tensor parallel size."""
    gpu_memory: int | None = None
    """Of one GPU; not needed where `kv_memory` is given."""
    utilization: float = UTILIZATION
    weights: int | None = None
    """Of the whole model, split over the GPUs."""
    activations: int = ACTIVATIONS
    other: int = OTHER
    kv_memory: int | None = None
    """Of one GPU, where it is known (``--kv-cache-memory-bytes``, or the startup log's "Available KV cache memory")."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool as a running server or its log reports it."""

    tokens: int
    max_model_len: int | None
    kv_cache_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """One column of a plan. ``None`` is what cannot be known here."""

    name: str
    max_model_len: int | None
    bytes_per_token: int | None = None
    """On one GPU."""
    bytes_per_sequence: int | None = None
    """Of full length, on one GPU."""
    weights: int | None = None
    """On one GPU."""
    kv_memory: int | None = None
    """On one GPU."""
    pool_tokens: int | None = None
    full_sequences: int | None = None
    """Sequences of full length that fit."""
    full_safe: int | None = None
    """The same with a fifth of the pool left free."""
    typical_sequences: int | None = None
    typical_safe: int | None = None
    impossible: str | None = None
    """Why this column has no numbers."""

    @property
    def max_num_seqs(self) -> int | None:
        """What to set: sized by typical requests where their length is known, else by the longest."""
        return self.typical_safe if self.typical_safe is not None else self.full_safe


def serve(name: str, serving: Serving, typical: float | None) -> Option:
    """The column of one way to serve; raises `ValueError` with the reason where it cannot be."""
    layout = kv_layout(serving.model, kv_cache_dtype=serving.kv_cache_dtype, tensor_parallel_size=serving.gpus)
    if serving.max_model_len < 1:
        raise ValueError(f"max model length must be at least 1 token, not {serving.max_model_len}")
    memory = _kv_memory(serving)
    full = layout.sequence_bytes(serving.max_model_len)
    if full > memory:
        raise ValueError(
            f"not even one sequence of {serving.max_model_len} tokens fits: it takes {full / 2**30:.2f} GiB of {memory / 2**30:.2f} GiB; "
            f"{_longest(layout, memory)} tokens would"
        )
    usual = None if typical is None else layout.sequence_bytes(math.ceil(typical))
    return Option(
        name=name,
        max_model_len=serving.max_model_len,
        bytes_per_token=layout.bytes_per_token,
        bytes_per_sequence=full,
        weights=None if serving.weights is None else math.ceil(serving.weights / serving.gpus),
        kv_memory=memory,
        # As vLLM counts: full-length sequences x their length, which for unbounded layers is memory / bytes per token.
        pool_tokens=memory * serving.max_model_len // full,
        full_sequences=sequences(memory, full),
        full_safe=safe_sequences(memory, full),
        typical_sequences=None if usual is None else sequences(memory, usual),
        typical_safe=None if usual is None else safe_sequences(memory, usual),
    )


def hold(name: str, pool: Pool, typical: float | None) -> Option:
    """The column of a pool of which only the tokens are known."""
    length = pool.max_model_len
    return Option(
        name=name,
        max_model_len=length,
        pool_tokens=pool.tokens,
        full_sequences=None if length is None else sequences(pool.tokens, length),
        full_safe=None if length is None else safe_sequences(pool.tokens, length),
        typical_sequences=None if typical is None else sequences(pool.tokens, typical),
        typical_safe=None if typical is None else safe_sequences(pool.tokens, typical),
    )


def serving_what_ifs(serving: Serving) -> list[tuple[str, Serving]]:
    """Other ways to serve the same model, each changing one thing."""
    found: list[tuple[str, Serving]] = []
    if serving.kv_cache_dtype in ("auto", "float16", "fp16", "half", "bfloat16", "bf16"):
        found.append(("fp8 KV", replace(serving, kv_cache_dtype="fp8")))
    computed = serving.kv_memory is None
    if computed and serving.weights is not None and "quantization_config" not in serving.model:
        found.append(("4-bit weights", replace(serving, weights=round(serving.weights * _FOUR_BIT))))
    if serving.max_model_len > 1:
        found.append((f"length {serving.max_model_len // 2}", replace(serving, max_model_len=serving.max_model_len // 2)))
    if computed and serving.utilization < 0.95:  # noqa: PLR2004 - the playbook's upper end
        found.append(("util. 0.95", replace(serving, utilization=0.95)))
    if computed:
        found.append((f"{2 * serving.gpus} GPUs", replace(serving, gpus=2 * serving.gpus)))
    return found


def pool_what_ifs(pool: Pool) -> list[tuple[str, Pool]]:
    """What can be said of another setting when only the tokens of the pool are known."""
    found: list[tuple[str, Pool]] = []
    if pool.kv_cache_dtype in ("auto", "float16", "half", "bfloat16"):
        found.append(("fp8 KV", replace(pool, tokens=2 * pool.tokens, kv_cache_dtype="fp8")))
    if pool.max_model_len is not None and pool.max_model_len > 1:
        found.append((f"length {pool.max_model_len // 2}", replace(pool, max_model_len=pool.max_model_len // 2)))
    return found


def _kv_memory(serving: Serving) -> int:
    if serving.kv_memory is not None:
        if serving.kv_memory <= 0:
            raise ValueError("KV cache memory must be more than 0 bytes")
        return serving.kv_memory
    if serving.gpu_memory is None:
        raise ValueError("give the memory of one GPU (--gpu-memory 24GiB), or what is left for KV (--kv-cache-memory 5GiB)")
    if serving.weights is None:
        raise ValueError("the weights' size cannot be computed from this config: give it (--weights 14GiB), e.g. the size of its files")
    return memory_for_kv(
        gpu_memory=serving.gpu_memory,
        utilization=serving.utilization,
        weights=serving.weights / serving.gpus,
        activations=serving.activations,
        other=serving.other,
    )


def _longest(layout: KvLayout, memory: int) -> int:
    """Tokens of the longest sequence that fits; layers with a window cost nothing more past it, so it is searched."""
    low, high = 0, max(1, memory)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if layout.sequence_bytes(middle) <= memory else (low, middle - 1)
    return low
