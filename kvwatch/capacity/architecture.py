"""What a model keeps in the KV cache, read from its ``config.json``: for each layer the caches it holds.

The field names and the order in which they are looked up follow vLLM 0.32 ``transformers_utils/model_arch_config_convertor.py``. What
config.json leaves out because it is its class's default is looked up in a table of those defaults. Where a config does not say in
understood words that a layer keeps less, the layer counts as full attention: the answer is then an upper bound, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvwatch.capacity.class_defaults import Defaults, complete
from kvwatch.capacity.fields import Config, first_whole, layer_count, listed, model_type, text_config, whole
from kvwatch.capacity.heads import Heads, attention_heads, heads_by_layer, layer_overrides
from kvwatch.capacity.kinds import LayerKind, read_kinds, window_size
from kvwatch.capacity.kv_dtype import checkpoint_kv_dtype
from kvwatch.capacity.model import Attention, Indexer, Latent, Layer, LayerState, Model
from kvwatch.capacity.model_types import (
    ATTENTION_PER_LAYER,
    FULL_DESPITE_RANK,
    KNOWN_ELSEWHERE,
    LATENT_TYPES,
    ONE_MORE,
    ONE_MORE_SINCE,
    STATE_BESIDE_ATTENTION,
    STATE_IN_EVERY_LAYER,
)
from kvwatch.capacity.roles import refuse_without_plan
from kvwatch.capacity.states import layer_state
from kvwatch.capacity.versions import NEWEST, Version


def read_model(config: Config, defaults: Defaults | None = None, drafts: int = 0, version: Version = NEWEST) -> Model:
    """What the layers of the model that ``config`` (a parsed ``config.json``) describes keep.

    ``drafts``: speculative tokens of a step, which widen a state; ``version``: of the vLLM that serves it. Raises `ValueError` with the
    reason when the config is not one of a decoder with a KV cache, or a number is missing.
    """
    whole_config = complete(config, defaults or {})
    text = text_config(whole_config)
    refuse_without_plan(whole_config, text)
    count = layer_count(text)
    known = not model_type(text) or model_type(text) in (defaults or {}) or model_type(text) in LATENT_TYPES | KNOWN_ELSEWHERE
    read = read_kinds(text, count, known_type=known)
    kinds, unknown = read.kinds[:count], list(read.unknown)
    latent = _is_latent(text)
    layers = _latent_layers(text, kinds, drafts, version) if latent else _attention_layers(text, kinds, unknown, drafts, version)
    layers = (
        layers * 1 if model_type(text) not in ATTENTION_PER_LAYER else [cache * ATTENTION_PER_LAYER[model_type(text)] for cache in layers]
    )
    if not any(layers):
        raise ValueError("no layer of this model has a KV cache: there is nothing to plan")
    own = checkpoint_kv_dtype(config, text)
    return Model(
        layers=tuple(layers),
        heads=attention_heads(text),
        kind=_in_words(layers),
        notes=_notes(text, layers),
        unknown=tuple(unknown),
        own_kv_dtype=own[0] if own else None,
        own_dtype_since=own[1] if own else (),
    )


def _is_latent(text: Config) -> bool:
    named = text.get("kv_lora_rank") or any(layer_overrides(text, i).get("kv_lora_rank") for i in range(1))
    return bool(named) and (not model_type(text) or model_type(text) in LATENT_TYPES)


def _state(text: Config, drafts: int) -> tuple[Layer, ...]:
    state = layer_state(text, drafts)
    if state is None:
        raise ValueError(
            "layers of this model keep a state for each sequence, and kvwatch does not know its size: what fits would be too much"
        )
    return (state,)


def _attention_layers(
    text: Config, kinds: Sequence[LayerKind], unknown: list[str], drafts: int, version: Version
) -> list[tuple[Layer, ...]]:
    if text.get("kv_lora_rank") and model_type(text) not in FULL_DESPITE_RANK:
        unknown.append(f"what kv_lora_rank means for model type {model_type(text)!r} (full keys and values are counted)")
    attending = [kind for kind in kinds if kind in (LayerKind.FULL, LayerKind.WINDOW, LayerKind.CHUNK, LayerKind.HYBRID)]
    heads: Sequence[Heads | None] = heads_by_layer(text, kinds) if attending else [None] * len(kinds)
    found: list[tuple[Layer, ...]] = []
    for kind, one in zip(kinds, heads, strict=True):
        attention: tuple[Layer, ...] = ()
        if one is not None and kind in (LayerKind.FULL, LayerKind.WINDOW, LayerKind.CHUNK, LayerKind.HYBRID):
            attention = (Attention(one.kv_heads, one.key_dim, one.value_dim, _window(text, kind, version), _chunk(text, kind)),)
        beside = kind in (LayerKind.STATE, LayerKind.HYBRID) or model_type(text) in STATE_BESIDE_ATTENTION | STATE_IN_EVERY_LAYER
        found.append((*attention, *(_state(text, drafts) if beside else ())))
    return found


def _window(text: Config, kind: LayerKind, version: Version) -> int | None:
    if kind != LayerKind.WINDOW:
        return None
    sizes = [n for n in listed(text, "sliding_window") if isinstance(n, int) and n > 0]
    window = window_size(text) or (max(sizes) if sizes else None)
    one_more = model_type(text) in ONE_MORE and version >= ONE_MORE_SINCE
    return window + 1 if window and one_more else window


def _chunk(text: Config, kind: LayerKind) -> int | None:
    return whole(text, "attention_chunk_size") if kind == LayerKind.CHUNK else None


def _latent_layers(text: Config, kinds: Sequence[LayerKind], drafts: int, version: Version) -> list[tuple[Layer, ...]]:
    ranks, ropes = listed(text, "kv_lora_rank"), listed(text, "qk_rope_head_dim")
    indexer = whole(text, "index_head_dim") or 0
    roles = listed(text, "indexer_types")
    found: list[tuple[Layer, ...]] = []
    for i, kind in enumerate(kinds):
        own = layer_overrides(text, i)
        rank = whole(own, "kv_lora_rank") or (ranks[i] if i < len(ranks) else whole(text, "kv_lora_rank"))
        rope = own.get("qk_rope_head_dim", ropes[i] if i < len(ropes) else text.get("qk_rope_head_dim"))
        if kind == LayerKind.STATE:
            found.append(_state(text, drafts))
        elif kind == LayerKind.NONE:
            found.append(())
        elif not isinstance(rank, int) or not isinstance(rope, int):
            raise ValueError("latent attention needs kv_lora_rank and qk_rope_head_dim")
        else:
            select = indexer and (i >= len(roles) or roles[i] != "shared")
            found.append((Latent(rank, rope, _window(text, kind, version)), *((Indexer(indexer),) if select else ())))
    return found


def _in_words(layers: Sequence[tuple[Layer, ...]]) -> str:
    caches = [cache for layer in layers for cache in layer]
    latent = [cache for cache in caches if isinstance(cache, Latent)]
    if latent:
        return f"{len(latent)} layers x one latent vector of {latent[0].rank} + {latent[0].rope_dim}"
    attention = [cache for cache in caches if isinstance(cache, Attention)]
    if not attention:
        return f"{len(caches)} layers with a state of fixed size, none with attention"
    shapes = {(cache.kv_heads, cache.key_dim) for cache in attention}
    if len(shapes) > 1:
        return " + ".join(
            f"{sum((cache.kv_heads, cache.key_dim) == shape for cache in attention)} layers x {shape[0]} KV heads x {shape[1]}"
            for shape in sorted(shapes)
        )
    return f"{len(attention)} layers x {attention[0].kv_heads} KV heads x {attention[0].key_dim}"


def _notes(text: Config, layers: Sequence[tuple[Layer, ...]]) -> tuple[str, ...]:
    notes = []
    caches = [cache for layer in layers for cache in layer]
    windows = [cache.window for cache in caches if isinstance(cache, (Attention, Latent)) and cache.window]
    chunks = [cache.chunk for cache in caches if isinstance(cache, Attention) and cache.chunk]
    states = [cache for cache in caches if isinstance(cache, LayerState)]
    if windows:
        notes.append(f"{len(windows)} of {len(layers)} layers keep at most {max(windows)} tokens")
    if chunks:
        notes.append(f"{len(chunks)} of {len(layers)} layers look into chunks of {max(chunks)} tokens")
    if shared := whole(text, "num_kv_shared_layers"):
        notes.append(f"the last {shared} layers reuse the KV of earlier ones")
    if text.get("use_cla") and (step := first_whole(text, ("cla_share_factor",))):
        notes.append(f"upper bound: one of {step} layers reads the KV of the others (cla_share_factor), but vLLM 0.32 allocates it for all")
    if states:
        notes.append(f"{len(states)} layers keep a state of fixed size for each sequence ({states[0].kind})")
    if any(isinstance(cache, Indexer) for cache in caches):
        notes.append("the sparse-attention indexer's keys are counted")
    return tuple(notes)
