"""What one token costs in the KV cache, read from a model's ``config.json``.

Per token and layer: ``2 (K and V) x KV heads x head dim x bytes per element`` on all GPUs together. Multi-head latent
attention keeps one compressed vector instead, ``kv_lora_rank + qk_rope_head_dim`` elements, the same on every GPU. The field
names and the order in which they are looked up follow vLLM's ``model_arch_config_convertor.py`` (0.32). Where a config does
not say that a layer's cache is bounded, the layer counts as full attention: the answer is then an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvwatch.capacity.heads import attention_heads, heads_by_layer
from kvwatch.capacity.layers import NO_KV, layer_windows, text_config, whole

_ELEMENT_BYTES: Final = {
    "float16": 2,
    "fp16": 2,
    "half": 2,
    "bfloat16": 2,
    "bf16": 2,
    # vLLM serves float32 checkpoints in 16 bits unless told otherwise, and its KV cache follows.
    "float32": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
_MLA_DTYPE: Final = "fp8_ds_mla"
KV_DTYPES: Final = ("auto", *(name for name in _ELEMENT_BYTES if name != "float32"), _MLA_DTYPE)
"""What ``--kv-cache-dtype`` may be here."""
_LATENT_NAMES_WITHOUT_MLA: Final = frozenset({"minicpm3"})
"""Model types whose config names a latent rank but whose full keys and values vLLM caches all the same."""

_ATTENTION_PER_LAYER: Final = {"longcat_flash": 2}
"""Model types whose layers, as config.json counts them, hold more than one attention each."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that cost the same on one GPU."""

    layers: int
    bytes_per_token: int
    """Of one such layer, on one GPU."""
    window: int | None
    """Tokens it keeps at most; ``None``: all of them."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The KV cache of one sequence on one GPU."""

    groups: tuple[LayerGroup, ...]
    copies: int
    """On how many GPUs each element is held (KV heads fewer than GPUs, or a latent vector)."""
    kind: str
    """In words: ``32 layers x 8 KV heads x 128``."""
    notes: tuple[str, ...] = ()

    @property
    def bytes_per_token(self) -> int:
        """Bytes on one GPU for each token while the sequence is shorter than every window."""
        return sum(group.layers * group.bytes_per_token for group in self.groups)

    def sequence_bytes(self, tokens: int) -> int:
        """Bytes on one GPU for a sequence of that many tokens; a sliding window bounds its layers."""
        return sum(
            group.layers * group.bytes_per_token * (tokens if group.window is None else min(tokens, group.window)) for group in self.groups
        )


def kv_layout(config: Mapping[str, object], *, kv_cache_dtype: str = "auto", tensor_parallel_size: int = 1) -> KvLayout:
    """The KV cache per sequence and GPU of the model that ``config`` (a parsed ``config.json``) describes.

    Raises `ValueError` with the reason when the config is not one of a decoder with a KV cache, a number is missing, or the
    number of GPUs does not divide the heads.
    """
    if tensor_parallel_size < 1:
        raise ValueError(f"tensor parallel size must be at least 1, not {tensor_parallel_size}")
    text = text_config(config)
    _refuse_what_is_not_understood(config, text)
    count = _layer_count(text)
    heads = attention_heads(text)
    if heads is not None and heads % tensor_parallel_size:
        raise ValueError(f"{heads} attention heads cannot be split over {tensor_parallel_size} GPUs")
    windows = layer_windows(text, count)
    notes = _notes(text, windows)
    if _is_latent(text):
        return _latent_layout(text, windows, kv_cache_dtype, tensor_parallel_size, notes)
    element = _element_bytes(kv_cache_dtype)
    cached = [
        (window, kv_heads, head_dim)
        for window, (kv_heads, head_dim) in zip(windows, heads_by_layer(text, windows, heads), strict=True)
        if window != NO_KV and kv_heads
    ]
    _refuse_without_cache(cached)
    _, kv_heads, head_dim = cached[0]
    return KvLayout(
        groups=_grouped([(window, 2 * _per_gpu(n, tensor_parallel_size) * dim * element) for window, n, dim in cached]),
        copies=max(1, tensor_parallel_size // kv_heads),
        kind=f"{len(cached)} layers x {kv_heads} KV heads x {head_dim}",
        notes=notes,
    )


def _refuse_what_is_not_understood(config: Mapping[str, object], text: Mapping[str, object]) -> None:
    if config.get("is_encoder_decoder") or text.get("is_encoder_decoder"):
        raise ValueError("an encoder-decoder model caches its cross attention too, which is not understood here")
    if text.get("compress_ratios"):
        raise ValueError(f"{text.get('model_type', 'this model')} compresses its KV cache by layer (compress_ratios), not understood here")


def _refuse_without_cache(cached: Sequence[object]) -> None:
    if not cached:
        raise ValueError("no layer of this model has a KV cache: there is nothing to plan")


def _layer_count(text: Mapping[str, object]) -> int:
    for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        if key in text:
            count = whole(text, key)
            if not count:
                raise ValueError(f"{key} is {text[key]!r}: a model has at least one layer")
            return count * _ATTENTION_PER_LAYER.get(str(text.get("model_type")), 1)
    kinds = text.get("layers_block_type") or text.get("hybrid_override_pattern")
    if isinstance(kinds, Sequence) and kinds:
        return len(kinds)
    raise ValueError("not a model's config.json that kvwatch understands: it has no num_hidden_layers")


def _is_latent(text: Mapping[str, object]) -> bool:
    return bool(text.get("kv_lora_rank")) and text.get("model_type") not in _LATENT_NAMES_WITHOUT_MLA


def _latent_layout(text: Mapping[str, object], windows: Sequence[int | None], dtype: str, gpus: int, notes: tuple[str, ...]) -> KvLayout:
    rank, rope = whole(text, "kv_lora_rank"), whole(text, "qk_rope_head_dim")
    if not rank or rope is None:
        raise ValueError("latent attention needs kv_lora_rank and qk_rope_head_dim")
    # fp8_ds_mla: the latent in 8 bits, one float32 scale for each 128 of them, the rotary part in 16 bits (656 B for 512 + 64).
    vector = rank + rank // 128 * 4 + 2 * rope if dtype == _MLA_DTYPE else (rank + rope) * _element_bytes(dtype)
    indexer = whole(text, "index_head_dim") or 0
    if indexer:
        # The sparse-attention indexer keeps its own 8-bit key and a float32 scale for each 128 of it.
        vector += indexer + indexer // 128 * 4
        notes = (*notes, "the sparse-attention indexer's keys are counted")
    sizes = [(window, vector) for window in windows if window != NO_KV]
    if not sizes:
        raise ValueError("no layer of this model has a KV cache: there is nothing to plan")
    return KvLayout(groups=_grouped(sizes), copies=gpus, kind=f"{len(sizes)} layers x one latent vector of {rank} + {rope}", notes=notes)


def _per_gpu(kv_heads: int, gpus: int) -> int:
    if kv_heads >= gpus and kv_heads % gpus:
        raise ValueError(f"{kv_heads} KV heads cannot be split over {gpus} GPUs")
    if kv_heads < gpus and gpus % kv_heads:
        raise ValueError(f"{kv_heads} KV heads cannot be replicated over {gpus} GPUs")
    return max(1, kv_heads // gpus)


def _element_bytes(kv_cache_dtype: str) -> int:
    if kv_cache_dtype == "auto":
        return _ELEMENT_BYTES["float16"]
    if kv_cache_dtype not in _ELEMENT_BYTES or kv_cache_dtype == "float32":
        raise ValueError(f"KV cache dtype {kv_cache_dtype!r} is not one kvwatch can count: {', '.join(KV_DTYPES)}")
    return _ELEMENT_BYTES[kv_cache_dtype]


def _grouped(sizes: Sequence[tuple[int | None, int]]) -> tuple[LayerGroup, ...]:
    return tuple(LayerGroup(layers=n, bytes_per_token=size, window=window) for (window, size), n in Counter(sizes).items())


def _notes(text: Mapping[str, object], windows: Sequence[int | None]) -> tuple[str, ...]:
    notes = []
    bounded = sum(1 for window in windows if window)
    if bounded:
        notes.append(f"{bounded} of {len(windows)} layers keep at most {max(w for w in windows if w)} tokens")
    shared = whole(text, "num_kv_shared_layers") or 0
    without = sum(1 for window in windows if window == NO_KV) - shared
    if shared:
        notes.append(f"the last {shared} layers reuse the KV of earlier ones")
    if without > 0:
        notes.append(f"{without} of {len(windows)} layers have no KV per token; their fixed state per sequence is not counted")
    return tuple(notes)
