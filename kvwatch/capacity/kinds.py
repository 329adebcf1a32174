"""Which kind each layer of a model is: full attention, a window, a chunk, a state, or nothing. Read from ``config.json``.

The first of these that the config has decides: a list with an entry for each layer, a list of the layers that have attention, a period,
a window with its pattern. A window whose pattern is not understood bounds no layer: every layer then counts as full attention, an upper
bound of the bytes, and the reason is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvwatch.capacity.fields import Config, first_whole, listed, model_type, whole
from kvwatch.capacity.model_types import ONE_KIND_ONLY, STATE_BESIDE_ATTENTION, STATES_ONLY, UNDERSTOOD_KEYS


class LayerKind(StrEnum):
    """What a layer keeps of a sequence."""

    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"
    HYBRID = "hybrid"
    """Attention and a state in one layer."""
    NONE = "none"
    """No cache at all: a plain MLP, the KV of an earlier layer."""


_WORDS: Final[dict[str, LayerKind]] = {
    **dict.fromkeys(("full_attention", "attention", "global_attention", "global", "full", "indexed_attention", "attn"), LayerKind.FULL),
    **dict.fromkeys(("deepseek_sparse_attention", "qwen_sparse_attention", "sparse_attention", "minimax_m3_sparse"), LayerKind.FULL),
    **dict.fromkeys(("sliding_attention", "local_attention", "sliding_window", "sliding", "local", "swa"), LayerKind.WINDOW),
    "chunked_attention": LayerKind.CHUNK,
    **dict.fromkeys(("linear_attention", "mamba", "mamba2", "conv", "recurrent", "linear", "kda", "gated_delta_net", "m"), LayerKind.STATE),
    "hybrid": LayerKind.HYBRID,
    **dict.fromkeys(("mlp", "moe", "dense", "-", "e"), LayerKind.NONE),
}
_LISTS: Final = ("layer_types", "layers_block_type", "attention_layers", "layer_attention_types")
_NEMOTRON_LETTERS: Final[dict[str, LayerKind]] = {"*": LayerKind.FULL, "M": LayerKind.STATE, "-": LayerKind.NONE, "E": LayerKind.NONE}
_SUSPECT: Final = re.compile(
    r"(?<!cross_)(?:swa|hybrid|interleaved_sliding|window_pattern|window_layer|local_attn|global_attn|full_attn|attn_type|attention_type|layer_group"
    r"|mamba|ssm|linear_attn|lightning|retention|rwkv|delta_net|conv_l_cache|use_cla|cla_share|share_kv|kv_shar|yoco|compress_ratio"
    r"|per_layer|kv_reuse|mb_per_layer|state_space|recurrent|(?:layer|attn|attention)_pattern|block_pattern"
    r"|(?:global|local|full|sliding|windowed|dense_attention)_?(?:attn|attention)?_(?:layers?|every|interval|period|freq|ratio|idx|ids|indices))",
    re.IGNORECASE,
)
"""Names of keys that say some layer keeps something else than all of its tokens."""
_ABOUT_LAYERS: Final = re.compile(
    r"^(?!.*(?:moe|mlp|ffn|expert|rope|theta|lora|vision)).*(?:layer|attn|attention|window|pattern|type|kind|block)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kind of each layer, and why they may not all be right."""

    kinds: tuple[LayerKind, ...]
    unknown: tuple[str, ...] = ()


def read_kinds(text: Config, count: int, *, known_type: bool) -> Kinds:
    """The kind of each of ``count`` layers. ``known_type``: the model type is one whose config class was read.

    Raises `ValueError` for a layer type it does not know or a list that is too short.
    """
    if model_type(text) in STATES_ONLY:
        return Kinds((LayerKind.STATE,) * count)
    for read in (_by_lists, _by_positions, _by_nemotron, _by_flags, _by_hybrid_flags, _by_chosen, _by_period):
        if kinds := read(text, count):
            return Kinds(_shared(text, kinds))
    kinds, unknown = _by_window(text, count, known_type=known_type)
    return Kinds(_shared(text, kinds), unknown)


def window_size(text: Config) -> int | None:
    """Tokens a sliding layer looks back; ``None`` where sliding is off or no size is given. 0 means off, as in vLLM."""
    if text.get("use_sliding_window") is False:
        return None
    return next(
        (n for key in ("sliding_window", "sliding_window_size", "window_size", "attention_window_size") if (n := whole(text, key))), None
    )


def _by_lists(text: Config, count: int) -> tuple[LayerKind, ...]:
    for key in _LISTS:
        names = [str(name) for name in listed(text, key)]
        if names:
            if len(names) < count:
                raise ValueError(f"layer types are given for {len(names)} of {count} layers")
            return tuple(_named(name, text) for name in names[:count])
    rule = text.get("layer_types_rule")
    if isinstance(rule, Mapping):
        cycle = [_named(str(kind), text) for kind in rule["cycle"]]
        kinds = tuple(cycle[i % len(cycle)] for i in range(count))
        return (*kinds[:-1], _named(str(rule["last"]), text)) if "last" in rule else kinds
    windows = listed(text, "sliding_window")
    if len(windows) >= count and not _suspects(text, known_type=True):
        return tuple(LayerKind.WINDOW if isinstance(n, int) and n > 0 else LayerKind.FULL for n in windows[:count])
    blocks = [str(kind) for kind in listed(text, "block_types")]
    return tuple(_named(blocks[i % len(blocks)], text) for i in range(count)) if blocks else ()


def _by_positions(text: Config, count: int) -> tuple[LayerKind, ...]:
    """Llama 4: layers with rotary positions look into chunks, the others see every token (vLLM 0.32 ``models/llama4.py``)."""
    if not whole(text, "attention_chunk_size"):
        return ()
    flags, interval = listed(text, "no_rope_layers"), whole(text, "no_rope_layer_interval")
    if len(flags) >= count:
        return tuple(LayerKind.CHUNK if flag else LayerKind.FULL for flag in flags[:count])
    return tuple(LayerKind.CHUNK if (i + 1) % interval else LayerKind.FULL for i in range(count)) if interval and not flags else ()


def _named(kind: str, text: Config) -> LayerKind:
    found = _WORDS.get(kind.lower())
    if found is None:
        raise ValueError(f"layer type {kind!r} is not one kvwatch knows the KV cache of")
    if found == LayerKind.WINDOW and window_size(text) is None:
        return LayerKind.STATE if text.get("conv_L_cache") else LayerKind.FULL
    if found == LayerKind.CHUNK and not whole(text, "attention_chunk_size"):
        return LayerKind.FULL
    return found


def _by_nemotron(text: Config, _count: int) -> tuple[LayerKind, ...]:
    letters = text.get("hybrid_override_pattern")
    if not isinstance(letters, str) or not letters:
        return ()
    unknown = sorted(set(letters) - set(_NEMOTRON_LETTERS) - {"|"})
    if unknown:
        raise ValueError(f"layer type {unknown[0]!r} of hybrid_override_pattern is not one kvwatch knows the KV cache of")
    return tuple(_NEMOTRON_LETTERS[letter] for letter in letters if letter != "|")


def _by_flags(text: Config, count: int) -> tuple[LayerKind, ...]:
    """MiniMax: 1 is attention, 0 linear attention."""
    flags = listed(text, "attn_type_list")
    if not flags:
        return ()
    if len(flags) < count:
        raise ValueError(f"attn_type_list is given for {len(flags)} of {count} layers")
    return tuple(LayerKind.FULL if flag == 1 else LayerKind.STATE for flag in flags[:count])


def _by_hybrid_flags(text: Config, count: int) -> tuple[LayerKind, ...]:
    """MiMo-V2: 1 is a window, 0 full attention (vLLM 0.32 ``models/mimo_v2.py``, is_compressed_softmax_layer)."""
    flags = listed(text, "hybrid_layer_pattern")
    if len(flags) < count or window_size(text) is None or not set(flags) <= {0, 1}:
        return ()
    return tuple(LayerKind.WINDOW if flag == 1 else LayerKind.FULL for flag in flags[:count])


def _by_chosen(text: Config, count: int) -> tuple[LayerKind, ...]:
    """A list of the layers that have attention, among layers with a state."""
    linear = text.get("linear_attn_config")
    chosen: Sequence[object] = ()
    if isinstance(linear, Mapping) and listed(linear, "full_attn_layers"):  # Kimi Linear counts from 1
        chosen = [n - 1 for n in listed(linear, "full_attn_layers") if isinstance(n, int)]
    else:  # Bamba; LFM2
        chosen = next((found for key in ("attn_layer_indices", "full_attn_idxs") if (found := listed(text, key))), ())
    return tuple(LayerKind.FULL if i in chosen else LayerKind.STATE for i in range(count)) if chosen else ()


def _by_period(text: Config, count: int) -> tuple[LayerKind, ...]:
    """Every n-th layer has attention, the others a state."""
    period, interval = whole(text, "attn_layer_period"), whole(text, "full_attention_interval")
    group, step = whole(text, "layer_group_size"), whole(text, "mamba_step")
    if period:  # Jamba
        offset = whole(text, "attn_layer_offset") or 0
        return tuple(LayerKind.FULL if i % period == offset else LayerKind.STATE for i in range(count))
    if interval:  # Qwen3-Next, Qwen3.5
        return tuple(LayerKind.STATE if (i + 1) % interval else LayerKind.FULL for i in range(count))
    if group and group > 1:  # Ling linear: the layers after the last whole group have attention
        whole_groups = count // group * group
        return tuple(LayerKind.STATE if (i + 1) % group and i < whole_groups else LayerKind.FULL for i in range(count))
    if step and text.get("mamba_enabled", True):  # PLaMo 2
        if count <= step // 2:
            return tuple(LayerKind.STATE if i < count - 1 else LayerKind.FULL for i in range(count))
        return tuple(LayerKind.FULL if i % step == step // 2 else LayerKind.STATE for i in range(count))
    return ()


def _by_window(text: Config, count: int, *, known_type: bool) -> tuple[tuple[LayerKind, ...], tuple[str, ...]]:
    window = window_size(text)
    full: tuple[LayerKind, ...] = (LayerKind.FULL,) * count
    if window is None:
        return full, () if model_type(text) in STATE_BESIDE_ATTENTION else _suspects(text, known_type=known_type)
    first = whole(text, "max_window_layers")
    if text.get("use_sliding_window") is True and first is not None:  # Qwen2
        if 0 < first < count and model_type(text) in ONE_KIND_ONLY:
            raise ValueError(
                f"vLLM refuses to start {model_type(text)} with a window for some layers only (max_window_layers {first} of {count})"
            )
        return tuple(LayerKind.WINDOW if i >= first else LayerKind.FULL for i in range(count)), ()
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:  # EXAONE 4: L local, G global; the last layer is global
        kinds: list[LayerKind] = [LayerKind.WINDOW if pattern[i % len(pattern)] == "L" else LayerKind.FULL for i in range(count)]
        return (*kinds[:-1], LayerKind.FULL), ()
    if every := first_whole(text, ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")):  # Gemma 3, AFMoE
        first_full = 0 if model_type(text).startswith("modernbert") else every - 1
        return tuple(LayerKind.FULL if i % every == first_full else LayerKind.WINDOW for i in range(count)), ()
    suspects = (*_suspects(text, known_type=True), *_listed_by_layer(text, count))
    if known_type and not suspects and pattern is None:  # Mistral: every layer
        return (LayerKind.WINDOW,) * count, ()
    why = suspects[0] if suspects else f"which layers of {model_type(text) or 'this model'} the window of {window} tokens bounds"
    return full, (why,)


def _suspects(text: Config, *, known_type: bool) -> tuple[str, ...]:
    """What the config says of its layers in words that are not understood here."""
    named = sorted(key for key, value in text.items() if _SUSPECT.search(key) and value not in (None, False, 0, [], {}))
    named = [key for key in named if key not in UNDERSTOOD_KEYS and not key.startswith("num_key_value_heads")]
    if named:
        return (f"what {', '.join(named[:3])} means for the layers",)
    return () if known_type else (f"the layers of model type {model_type(text)!r}",)


def _listed_by_layer(text: Config, count: int) -> tuple[str, ...]:
    """A list or a word with an entry for each layer, whose key says nothing of experts or positions, may say which the window bounds."""
    named = [
        key
        for key, value in text.items()
        if isinstance(value, (list, tuple, str)) and len(value) == count > 1 and not (isinstance(value, str) and key.endswith("type"))
        if key not in UNDERSTOOD_KEYS and _ABOUT_LAYERS.search(key)
    ]
    return (f"what {named[0]} means for the layers",) if named else ()


def _shared(text: Config, kinds: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    """Layers that reuse the keys and values of an earlier one keep none (vLLM: kv_sharing_target_layer_name)."""
    count, shared = len(kinds), whole(text, "num_kv_shared_layers") or 0
    if shared >= count:
        raise ValueError(f"{shared} of {count} layers share the KV of earlier ones: there is no earlier one")
    return kinds[: count - shared] + (LayerKind.NONE,) * shared
