"""How many KV heads of which size each layer of a model has. Read from ``config.json``, as vLLM's converter reads it.

Names and their order: vLLM 0.32 ``transformers_utils/model_arch_config_convertor.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvwatch.capacity.fields import HEADS, HIDDEN, Config, first_whole, listed, model_type, whole
from kvwatch.capacity.kinds import LayerKind

_KV_HEADS: Final = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups", "kv_n_heads")
_OWN_VALUE_SIZE: Final = ("mimo_v2",)
"""Model types whose values are narrower than their keys in vLLM's cache too; the others are padded to the key's size."""


@dataclass(frozen=True, slots=True)
class Heads:
    """KV heads of one layer and the sizes of a key and a value."""

    kv_heads: int
    key_dim: int
    value_dim: int


def attention_heads(text: Config) -> int | None:
    """Query heads of a layer; ``None`` where the config leaves them to the model's default."""
    return first_whole(text, (*HEADS, "num_heads")) if model_type(text) == "gpt_neo" else first_whole(text, HEADS)


def heads_by_layer(text: Config, kinds: Sequence[LayerKind]) -> list[Heads | None]:
    """The heads of each layer; ``None`` for a layer that ``block_configs`` leaves without attention.

    Raises `ValueError` naming what is missing or impossible.
    """
    count, heads = len(kinds), attention_heads(text)
    if blocks := listed(text, "block_configs"):
        return [_block_heads(block, heads, text) for block in blocks[:count]]
    numbers = _kv_heads_by_layer(text, count)
    found: list[Heads | None] = []
    for i, kind in enumerate(kinds):
        dim = _head_dim(text, heads)
        one = Heads(numbers[i] if numbers else _kv_heads(text, heads), dim, dim)
        found.append(_overridden(text, i, _windowed(text, one) if kind == LayerKind.WINDOW else _unbounded(text, one, kinds)))
    return found


def _kv_heads_by_layer(text: Config, count: int) -> list[int] | None:
    for key in ("num_kv_heads", "num_key_value_heads", "num_key_value_heads_per_layer"):
        numbers = listed(text, key)
        if numbers:
            if len(numbers) < count or not all(isinstance(n, int) and n > 0 for n in numbers):
                raise ValueError(f"KV heads are listed for {len(numbers)} of {count} layers, or one of them is not a positive number")
            return [n for n in numbers[:count] if isinstance(n, int)]
    return None


def _windowed(text: Config, heads: Heads) -> Heads:
    """Layers with a window may have their own heads: MiMo-V2 (swa_…), Step 3.5 (attention_other_setting)."""
    other = text.get("attention_other_setting")
    other_groups = first_whole(other, ("num_attention_groups", "num_key_value_heads")) if isinstance(other, Mapping) else None
    kv_heads = other_groups or whole(text, "swa_num_key_value_heads") or heads.kv_heads
    dim = whole(text, "swa_head_dim") or heads.key_dim
    return Heads(kv_heads, dim, _value_dim(text, "swa_v_head_dim", dim))


def _unbounded(text: Config, heads: Heads, kinds: Sequence[LayerKind]) -> Heads:
    """Gemma 4: layers that see every token may have their own number and size of heads."""
    dim = whole(text, "global_head_dim") or heads.key_dim
    if LayerKind.WINDOW not in kinds:
        return replace(heads, value_dim=_value_dim(text, "v_head_dim", heads.key_dim))
    return Heads(whole(text, "num_global_key_value_heads") or heads.kv_heads, dim, _value_dim(text, "v_head_dim", dim))


def _value_dim(text: Config, key: str, dim: int) -> int:
    return whole(text, key) or dim if model_type(text).startswith(_OWN_VALUE_SIZE) else dim


def layer_overrides(text: Config, layer: int) -> Config:
    """What ``per_layer_config`` says of one layer: by its number, written with or without leading zeros, or in a list."""
    every = text.get("per_layer_config")
    own: object = None
    if isinstance(every, Mapping):
        own = next((value for key, value in every.items() if str(key).isdigit() and int(str(key)) == layer), None)
    elif (entries := listed(text, "per_layer_config")) and layer < len(entries):
        own = entries[layer]
    return own if isinstance(own, Mapping) else {}


def _overridden(text: Config, layer: int, heads: Heads) -> Heads:
    own = layer_overrides(text, layer)
    dim = whole(own, "head_dim")
    kv_heads = first_whole(own, _KV_HEADS) or heads.kv_heads
    return Heads(kv_heads, dim or heads.key_dim, dim or heads.value_dim)


def _block_heads(block: object, heads: int | None, text: Config) -> Heads | None:
    attention = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(attention, Mapping):
        raise ValueError("block_configs does not say what attention each layer has")  # noqa: TRY004 - a bad config, not a bad call
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return None
    group, kv_heads = whole(attention, "n_heads_in_group"), first_whole(attention, _KV_HEADS)
    if kv_heads is None and group and heads:
        kv_heads = heads // group
    if not kv_heads:
        raise ValueError("block_configs does not say n_heads_in_group")
    dim = _head_dim(text, heads)
    return Heads(kv_heads, dim, dim)


def _kv_heads(text: Config, heads: int | None) -> int:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    if text.get("multi_query_attention") is False and heads:  # ChatGLM: the number of groups then means nothing
        return heads
    nested = text.get("attn_config")
    for place in [text, nested] if isinstance(nested, Mapping) else [text]:
        for key in _KV_HEADS:
            if place.get(key) is not None:
                kv_heads = whole(place, key)
                if not kv_heads:
                    raise ValueError(f"{key} is {place[key]!r}: attention has at least one KV head")
                return kv_heads
    if heads is None:
        raise ValueError("the config names neither num_key_value_heads nor num_attention_heads: write in the model's own default")
    return heads


def _head_dim(text: Config, heads: int | None) -> int:
    if text.get("kv_lora_rank"):
        parts = (whole(text, "qk_nope_head_dim") or 0) + (whole(text, "qk_rope_head_dim") or 0)
        if parts:
            return parts
    order = (
        ("attention_head_dim", "head_dim") if model_type(text) == "zamba2" else ("head_dim", "hidden_size_per_head", "attention_head_dim")
    )
    if dim := first_whole(text, (*order, "kv_channels")):
        return dim
    hidden = first_whole(text, HIDDEN)
    if hidden is None or heads is None:
        raise ValueError("the config gives no head_dim, and no hidden_size and num_attention_heads to derive it from")
    if hidden < heads:
        raise ValueError(f"a hidden size of {hidden} over {heads} attention heads leaves none of a size")
    return hidden // heads
