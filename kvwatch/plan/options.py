"""One column of a plan: a way to serve a model, or a pool that exists, and what fits it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvwatch.capacity.cache import ServerSetup, kv_cache
from kvwatch.capacity.concurrency import ConcurrencyLimit, limit_by_end, tokens_at_end
from kvwatch.capacity.model import Model
from kvwatch.capacity.pool import HEADROOM, memory_for_kv, safe_sequences, sequences
from kvwatch.capacity.pool_fit import PoolShape

ACTIVATIONS: Final = 2 * 2**30
"""Bytes of a GPU that activations and CUDA graphs take, about (playbook)."""
OTHER: Final = 2**30
"""Bytes lost to fragmentation and the CUDA context, about (playbook)."""
UTILIZATION: Final = 0.92
"""vLLM's own default from 0.20 on (0.9 before)."""
LENGTHS: Final = (1024, 2048, 4096, 8192)
"""Tokens of a request, prompt and output, that a plan always shows, besides the longest."""


@dataclass(frozen=True, slots=True)
class Serving:
    """One way to serve a model: everything the arithmetic needs. Sizes in bytes."""

    model: Model
    max_model_len: int
    server: ServerSetup = field(default_factory=ServerSetup)
    length_asked: bool = True
    """Somebody asked for this length; else it is the model's own, and what does not fit is shortened."""
    gpu_memory: int | None = None
    """Of one GPU; not needed where `kv_memory` or `blocks` is given."""
    utilization: float = UTILIZATION
    weights: int | None = None
    """Of the whole model, split over the GPUs."""
    quantised: bool = False
    activations: int = ACTIVATIONS
    other: int = OTHER
    kv_memory: int | None = None
    """Of one GPU, where it is known (``--kv-cache-memory-bytes``, or the startup log's "Available KV cache memory")."""
    blocks: int | None = None
    """Of one engine, where a running server says so; only for the way it is served now."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool as a running server or its log reports it."""

    tokens: int
    """At `max_model_len`: concurrency times length."""
    max_model_len: int | None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    shape: PoolShape | None = None
    """How it shrinks with shorter requests, where the figures tell."""
    at_most: bool = False
    """The tokens are blocks times tokens of a block: the pool where all layers are of one kind, more than it elsewhere."""
    several_kinds: bool = False
    """Its layers keep different things: tokens are then no measure for other lengths."""

    @property
    def only_longest(self) -> bool:
        """Nothing is known of requests shorter than the longest."""
        return self.several_kinds and self.shape is None


@dataclass(frozen=True, slots=True)
class Fit:
    """Requests of one length in the pool."""

    tokens: int
    """Prompt and output of each."""
    sequences: int
    """That fit when all have grown to their end."""


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
    blocks: int | None = None
    block_size: int | None = None
    pool_tokens: int | None = None
    """Concurrency at full length times that length."""
    pool_tokens_at_most: int | None = None
    """Where only this much is known; the sequences below are then upper bounds too."""
    full_sequences: int | None = None
    """Sequences of full length that fit: vLLM's "Maximum concurrency", whole ones."""
    full_safe: int | None = None
    """The same with a fifth of the pool left free."""
    typical_sequences: int | None = None
    typical_safe: int | None = None
    lengths: tuple[Fit, ...] = ()
    max_num_seqs: int | None = None
    """What to set: as many usual requests as fit when all have grown to their end; ``None`` where their length is not known."""
    longest_that_starts: int | None = None
    """Where not even one sequence of full length fits: the longest ``--max-model-len`` that does."""
    impossible: str | None = None
    """Why this column has no numbers."""


def serve(name: str, serving: Serving, typical: float | None) -> Option:
    """The column of one way to serve; raises `ValueError` with the reason where it cannot be."""
    if serving.max_model_len < 1:
        raise ValueError(f"max model length must be at least 1 token, not {serving.max_model_len}")
    cache = kv_cache(serving.model, serving.server)
    memory = serving.blocks * cache.bytes_per_block if serving.blocks else _kv_memory(serving)
    blocks = cache.blocks(memory)
    need = cache.need(serving.max_model_len)
    starts = cache.longest(blocks) if need > blocks else None
    if starts == 0 or (starts and serving.length_asked):
        raise ValueError(
            f"not even one sequence of {serving.max_model_len} tokens fits: it takes {need * cache.bytes_per_block / 2**30:.2f} GiB "
            f"of {memory / 2**30:.2f} GiB; {starts} tokens would"
        )
    usual = None if typical is None else sequences(blocks, cache.need(math.ceil(typical)))
    return Option(
        name=name,
        max_model_len=serving.max_model_len,
        bytes_per_token=cache.bytes_per_token,
        bytes_per_sequence=need * cache.bytes_per_block,
        weights=None if serving.weights is None else math.ceil(serving.weights / (serving.server.gpus * serving.server.stages)),
        kv_memory=memory,
        blocks=blocks,
        block_size=cache.block_size,
        pool_tokens=cache.tokens(blocks, serving.max_model_len),
        full_sequences=sequences(blocks, need),
        full_safe=safe_sequences(blocks, need),
        typical_sequences=usual,
        typical_safe=None if typical is None else safe_sequences(blocks, cache.need(math.ceil(typical))),
        lengths=tuple(Fit(length, sequences(blocks, cache.need(length))) for length in _shown(starts or serving.max_model_len)),
        max_num_seqs=usual or None,
        longest_that_starts=starts,
    )


def hold(name: str, pool: Pool, typical: float | None, fits: ConcurrencyLimit | None = None) -> Option:
    """The column of a pool of which only what its server says is known; *fits* is how many usual requests it was seen to hold."""
    length = pool.max_model_len
    full = None if length is None else sequences(pool.tokens, length)
    usual = fits.sequences if fits is not None else None if typical is None else _held(pool, typical)
    return Option(
        name=name,
        max_model_len=length,
        block_size=pool.block_size,
        blocks=pool.shape.blocks if pool.shape else None,
        pool_tokens=None if pool.at_most else pool.tokens,
        pool_tokens_at_most=pool.tokens if pool.at_most else None,
        full_sequences=full,
        full_safe=None if length is None else safe_sequences(pool.tokens, length),
        typical_sequences=usual,
        typical_safe=None if usual is None else math.floor(usual * (1 - HEADROOM)),
        lengths=_lengths(pool),
        max_num_seqs=usual or None,
    )


def _lengths(pool: Pool) -> tuple[Fit, ...]:
    shown = [tokens for tokens in _shown(pool.max_model_len) if tokens == pool.max_model_len or not pool.only_longest]
    return tuple(Fit(tokens, fits) for tokens in shown if (fits := _held(pool, tokens)) is not None)


def _held(pool: Pool, tokens: float) -> int | None:
    """Requests of that many tokens: by the shape of the pool, or where that is not known by the length it was counted at."""
    if pool.shape is not None:
        return pool.shape.sequences(math.ceil(tokens))
    if pool.several_kinds:
        return None if pool.max_model_len is None else sequences(pool.tokens, max(pool.max_model_len, tokens))
    return limit_by_end(pool.tokens, tokens_at_end(tokens, 0, pool.block_size)).sequences


def _shown(longest: int | None) -> tuple[int, ...]:
    if longest is None:
        return LENGTHS
    return (*(length for length in LENGTHS if length < longest), longest)


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
        weights=serving.weights / (serving.server.gpus * serving.server.stages),
        activations=serving.activations,
        other=serving.other,
    )


def quantised(config: Mapping[str, object]) -> bool:
    """Whether the checkpoint's weights have fewer bits already."""
    return "quantization_config" in config or "compression_config" in config
