"""Which layers of a model keep KV, and how much of the sequence each keeps. Read from ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

NO_KV: Final = 0
"""The window of a layer that keeps no KV per token: linear attention, state space, convolution, plain MLP, shared KV."""

_FULL: Final = frozenset(
    {"full_attention", "attention", "global_attention", "indexed_attention", "deepseek_sparse_attention", "qwen_sparse_attention", "hybrid"}
)
_SLIDING: Final = frozenset({"sliding_attention", "local_attention", "sliding_window", "sliding"})
_CHUNKED: Final = frozenset({"chunked_attention"})
_WITHOUT: Final = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "mlp", "moe", "linear"})
_NESTED: Final = ("text_config", "language_config", "llm_config", "thinker_config")
_PATTERN_BY_MODEL: Final = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4, "gpt_oss": 2}
"""Where config.json names a window but no pattern: every n-th layer is full attention, by the model's own default."""


def text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part that describes the language model: multimodal configs nest it."""
    for key in _NESTED:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            return text_config(nested)
    return config


def whole(config: Mapping[str, object], key: str) -> int | None:
    """A number of the config that counts something; ``None`` where it is missing, null or not a whole number >= 0."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def layer_windows(text: Mapping[str, object], count: int) -> list[int | None]:
    """For each of ``count`` layers: ``None`` keeps every token, a number keeps that many, `NO_KV` keeps none.

    Raises `ValueError` for a layer type it does not know or a list that is too short.
    """
    windows = _by_layer_types(text, count) or _by_hybrid_pattern(text, count) or _by_window_pattern(text, count)
    shared = whole(text, "num_kv_shared_layers") or 0
    if shared >= count:
        raise ValueError(f"{shared} of {count} layers share the KV of earlier ones: there is no earlier one")
    return windows[: count - shared] + [NO_KV] * shared


def _by_layer_types(text: Mapping[str, object], count: int) -> list[int | None]:
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if not isinstance(kinds, Sequence) or isinstance(kinds, str) or not kinds:
        return []
    if len(kinds) < count:
        raise ValueError(f"layer types are given for {len(kinds)} of {count} layers")
    return [_window_of(str(kind), text) for kind in kinds[:count]]


def _window_of(kind: str, text: Mapping[str, object]) -> int | None:
    if kind in _FULL:
        return None
    if kind in _SLIDING:
        return _sliding_window(text)
    if kind in _CHUNKED:
        return whole(text, "attention_chunk_size") or None
    if kind in _WITHOUT:
        return NO_KV
    raise ValueError(f"layer type {kind!r} is not one kvwatch knows the KV cache of")


def _by_hybrid_pattern(text: Mapping[str, object], count: int) -> list[int | None]:
    """Models that say which layers have attention, all of it full, among layers that have none."""
    attention = _attention_layers(text, count)
    return [] if attention is None else [None if i in attention else NO_KV for i in range(count)]


def _attention_layers(text: Mapping[str, object], count: int) -> set[int] | None:
    """Indices of the layers that have attention; ``None`` where the config does not speak of it."""
    letters, flags = text.get("hybrid_override_pattern"), text.get("attn_type_list")
    period, interval = whole(text, "attn_layer_period"), whole(text, "full_attention_interval")
    chosen, linear = text.get("attn_layer_indices") or text.get("full_attn_idxs"), text.get("linear_attn_config")
    from_one = linear.get("full_attn_layers") if isinstance(linear, Mapping) else None
    found: set[int] | None = None
    if isinstance(letters, str) and letters:  # Nemotron-H: * is attention, M Mamba, - MLP, E experts
        found = {i for i, letter in enumerate(letters) if letter == "*"}
    elif isinstance(flags, Sequence) and flags:  # MiniMax: 1 is attention
        found = {i for i, flag in enumerate(flags) if flag == 1}
    elif period:  # Jamba
        found = set(range(whole(text, "attn_layer_offset") or 0, count, period))
    elif interval:  # Qwen3-Next
        found = set(range(interval - 1, count, interval))
    elif isinstance(chosen, Sequence):  # Bamba, LFM2
        found = set(chosen)
    elif isinstance(from_one, Sequence):  # Kimi Linear counts from 1
        found = {number - 1 for number in from_one}
    return found


def _by_window_pattern(text: Mapping[str, object], count: int) -> list[int | None]:
    window = _sliding_window(text)
    if window is None:
        return [None] * count
    if text.get("use_sliding_window") is True and (first := whole(text, "max_window_layers")) is not None:  # Qwen2
        return [window if i >= first else None for i in range(count)]
    pattern = whole(text, "sliding_window_pattern") or _PATTERN_BY_MODEL.get(str(text.get("model_type")))
    if pattern:
        return [None if (i + 1) % pattern == 0 else window for i in range(count)]
    return [window] * count


def _sliding_window(text: Mapping[str, object]) -> int | None:
    """Tokens a sliding layer keeps; ``None`` (all) where sliding is off or no size is given. 0 means off, as in vLLM."""
    if text.get("use_sliding_window") is False:
        return None
    return whole(text, "sliding_window") or None
