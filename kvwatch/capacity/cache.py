"""The KV cache of one model on one server: bytes per block, blocks in the memory there is, blocks a request needs, requests that fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvwatch.capacity.groups import Group, Spec, make_groups
from kvwatch.capacity.kv_dtype import DS_MLA, vector_bytes
from kvwatch.capacity.model import MAMBA2, Attention, Indexer, Latent, Layer, LayerState, Model
from kvwatch.capacity.versions import NEWEST, Version


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """How a model is served: what the arithmetic of its cache depends on."""

    version: Version = NEWEST
    gpus: int = 1
    """Tensor parallel size."""
    stages: int = 1
    """Pipeline parallel size."""
    kv_dtype: str = "auto"
    block_size: int | None = None
    """Tokens; ``None``: that version's default."""
    batched_tokens: int | None = None
    """``--max-num-batched-tokens``; ``None``: not known, window layers are then counted at their window."""
    async_scheduling: bool = True
    device: str = "gpu"
    """``cpu``: vLLM's CPU build, which keeps recurrent states in float32 and takes blocks of 128 (``platforms/cpu.py``)."""
    prefix_caching: bool | None = None
    """``None``: that version's default for models with a state."""
    drafts: int = 0
    """Speculative tokens of a step."""
    hybrid_manager: bool = True
    chunks_bound: bool | None = None
    """VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE: without it vLLM counts chunked layers as full attention."""
    partition: tuple[int, ...] = field(default=())
    """Layers of each stage (VLLM_PP_LAYER_PARTITION); empty: as vLLM divides them."""

    @property
    def in_flight(self) -> int:
        """Tokens that may be scheduled and not settled: since 0.26 a batch for each step that may overlap (``config/vllm.py``)."""
        if self.batched_tokens is None:
            return 0
        overlapping = self.stages if self.stages > 1 else 1 + (self.async_scheduling and self.device != "cpu")
        return self.batched_tokens * (overlapping if self.version >= (0, 26) else 1)

    @property
    def chunks_bounded(self) -> bool:
        """Whether a chunk bounds what its layers keep; the variable's default changed with 0.15 (``envs.py`` 0.13, 0.15)."""
        return self.version >= (0, 15) if self.chunks_bound is None else self.chunks_bound

    def state_blocks(self, *, with_attention: bool, mamba2: bool) -> int:
        """Blocks a request holds in each group of states (MambaSpec.max_memory_usage_bytes).

        With prefix caching one more, and for Mamba 2 another for a checkpoint of the prompt since 0.32 (``layers/mamba/mamba_mixer2.py``).
        Prefix caching is the default of models with attention beside the states since 0.28 (``engine/arg_utils.py``).
        """
        cached = self.prefix_caching if self.prefix_caching is not None else with_attention and self.version >= (0, 28)
        return 1 + self.drafts + (1 + (mamba2 and self.version >= (0, 32)) if cached else 0)


@dataclass(frozen=True, slots=True)
class KvCache:
    """What `kv_cache` works out. Bytes are those of one GPU of the fullest stage."""

    groups: tuple[Group, ...]
    stage_bytes: tuple[int, ...]
    """Bytes of one block on a GPU of each stage."""
    bytes_per_token: int
    """Of a token while the sequence is shorter than every window."""
    block_size: int
    """Tokens of the smallest block of a layer that keeps tokens; 1 where none does."""
    server: ServerSetup
    state_blocks: int
    """Blocks a request holds in each group of states."""

    @property
    def bytes_per_block(self) -> int:
        """On a GPU of the stage that holds most: the smallest pool decides for all."""
        return max(self.stage_bytes)

    def blocks(self, memory: int) -> int:
        """Blocks in that many bytes of each GPU (get_num_blocks)."""
        return memory // self.bytes_per_block

    def need(self, length: int) -> int:
        """Blocks one request of that many tokens needs, over all groups."""
        return sum(group.spec.blocks(length, self.server.in_flight, self.state_blocks) for group in self.groups)

    def concurrency(self, blocks: int, length: int) -> float:
        """Requests of that length in so many blocks (get_max_concurrency_for_kv_cache_config): vLLM's "Maximum concurrency"."""
        return blocks / self.need(length)

    def tokens(self, blocks: int, length: int) -> int:
        """The tokens vLLM prints as KV cache size since 0.21: concurrency at full length times that length (get_kv_cache_capacity)."""
        return int(self.concurrency(blocks, length) * length)

    def longest(self, blocks: int) -> int:
        """The longest request that fits; since 0.30 one block, the null block, is held back."""
        usable = blocks - (self.server.version >= (0, 30))
        low, high = 0, max(0, usable) * max((g.spec.block for g in self.groups if g.spec.kind != "state"), default=1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.need(middle) <= usable else (low, middle - 1)
        return low


def kv_cache(model: Model, server: ServerSetup) -> KvCache:
    """The cache of ``model`` as ``server`` lays it out; raises `ValueError` with the reason when it cannot be served so."""
    if server.gpus < 1:
        raise ValueError(f"tensor parallel size must be at least 1, not {server.gpus}")
    if model.heads is not None and model.heads % server.gpus:
        raise ValueError(f"{model.heads} attention heads cannot be split over {server.gpus} GPUs")
    dtype = server.kv_dtype
    if dtype == "auto" and model.own_kv_dtype is not None and server.version >= model.own_dtype_since:
        dtype = model.own_kv_dtype
    caches = model.caches
    token_bytes = [_token_bytes(cache, dtype, server.gpus) for cache in caches]
    block = _block_size(model, server, dict(enumerate(token_bytes)))
    specs = [_spec(cache, size, block, server) for cache, size in zip(caches, token_bytes, strict=True)]
    chunked = any(spec.kind == "chunk" for spec in specs) and not server.chunks_bounded
    groups = make_groups(specs, server.version, hybrid=server.hybrid_manager and server.version >= (0, 9) and not chunked)
    stage_of = _stages(model, server)
    stages = range(server.stages)
    return KvCache(
        groups=tuple(groups),
        stage_bytes=tuple(max(_pages(group, stage_of, stage) for group in groups) for stage in stages),
        bytes_per_token=max(sum(size for i, size in enumerate(token_bytes) if stage_of[i] == stage) for stage in stages),
        block_size=min((group.spec.block for group in groups if group.spec.kind != "state"), default=1),
        server=server,
        state_blocks=server.state_blocks(
            with_attention=model.heads is not None, mamba2=any(isinstance(cache, LayerState) and cache.kind == MAMBA2 for cache in caches)
        ),
    )


def _pages(group: Group, stage_of: list[int], stage: int) -> int:
    return sum(page for i, page in zip(group.layers, group.pages, strict=True) if stage_of[i] == stage)


_DS_MLA_TOKEN: Final = 656
"""Bytes of a token in fp8_ds_mla: 512 in 8 bits, a float32 scale for each 128 of them, the rotary part in 16 bits."""
_SCALED: Final = 128
"""Elements that share one float32 scale."""


def _token_bytes(cache: Layer, dtype: str, gpus: int) -> int:
    """Bytes of one token in one layer on one GPU; 0 for a state."""
    if isinstance(cache, Attention):
        if dtype == DS_MLA:
            return vector_bytes(0, dtype)
        heads = _heads_on_one_gpu(cache.kv_heads, gpus)
        return heads * (vector_bytes(cache.key_dim, dtype) + vector_bytes(cache.value_dim, dtype))
    if isinstance(cache, Latent):
        if dtype == DS_MLA:
            return (
                _DS_MLA_TOKEN if (cache.rank, cache.rope_dim) == (512, 64) else cache.rank + cache.rank // _SCALED * 4 + 2 * cache.rope_dim
            )
        return vector_bytes(cache.rank + cache.rope_dim, dtype)
    return cache.dim + cache.dim // _SCALED * 4 if isinstance(cache, Indexer) else 0


def _heads_on_one_gpu(kv_heads: int, gpus: int) -> int:
    """At least one whole head on every GPU (``config/model.py``, get_num_kv_heads)."""
    if kv_heads >= gpus and kv_heads % gpus:
        raise ValueError(f"{kv_heads} KV heads cannot be split over {gpus} GPUs")
    if kv_heads < gpus and gpus % kv_heads:
        raise ValueError(f"{kv_heads} KV heads cannot be replicated over {gpus} GPUs")
    return max(1, kv_heads // gpus)


_LATENT_BLOCK: Final = 64
"""FlashMLA's block, the usual one of latent models before 0.34."""
_CPU_BLOCK: Final = 128
"""Of vLLM's CPU build (``platforms/cpu.py``)."""
_HYBRID_LATENT_ALIGNMENT: Final = 128
"""Tokens: blocks of a model with latent attention and states are a multiple of it."""


def _block_size(model: Model, server: ServerSetup, token_bytes: Mapping[int, int]) -> int:
    """Tokens of an attention block: the flag or the default, enlarged until a page covers a state (_align_hybrid_block_size)."""
    latent = any(isinstance(cache, Latent) for cache in model.caches)
    newest = server.version >= (0, 34)
    block = server.block_size or (_CPU_BLOCK if server.device == "cpu" else _LATENT_BLOCK if newest or latent else 16)
    state = max((_state_bytes(cache, server) for cache in model.caches if isinstance(cache, LayerState)), default=0)
    per_token = max((size for i, size in token_bytes.items() if not isinstance(model.caches[i], LayerState)), default=0)
    if not state or not per_token:
        return block
    alignment = max(16 if server.block_size is None and not newest else block, _HYBRID_LATENT_ALIGNMENT if latent else 0)
    return max(block, alignment * -(-state // (alignment * per_token)))


def _state_bytes(state: LayerState, server: ServerSetup) -> int:
    return state.bytes_per_gpu(server.gpus, at_least=4 if server.device == "cpu" else 0)


def _spec(cache: Layer, token_bytes: int, block: int, server: ServerSetup) -> Spec:
    if isinstance(cache, LayerState):
        return Spec("state", _state_bytes(cache, server), 0)
    if isinstance(cache, Attention) and cache.chunk:
        return Spec("chunk", block * token_bytes, block, cache.chunk)
    window = cache.window if isinstance(cache, (Attention, Latent)) else None
    return Spec("window" if window else "full", block * token_bytes, block, window)


def _stages(model: Model, server: ServerSetup) -> list[int]:
    """The pipeline stage of each cache (``distributed/utils.py``, get_pp_indices): what is left over goes to the stages before the last."""
    count, stages = len(model.layers), server.stages
    if not 1 <= stages <= count:
        raise ValueError(f"{count} layers cannot be divided over {stages} pipeline stages")
    sizes = list(server.partition) or [count // stages] * stages
    if not server.partition:
        for i in range(2, count % stages + 2):
            sizes[-i] += 1
    if len(sizes) != stages or sum(sizes) != count:
        raise ValueError(f"a partition of {sizes} does not divide {count} layers over {stages} pipeline stages")
    by_layer = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    return [stage for stage, layer in zip(by_layer, model.layers, strict=True) for _ in layer]
