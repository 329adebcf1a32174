"""How many KV heads of which size each layer of a model has. Read from ``config.json``, as vLLM's converter reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kvwatch.capacity.layers import whole

_KV_HEADS: Final = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups", "kv_n_heads")


def attention_heads(text: Mapping[str, object]) -> int | None:
    """Query heads of a layer; ``None`` where the config leaves them to the model's default."""
    return next((n for key in ("num_attention_heads", "n_head", "n_heads") if (n := whole(text, key))), None)


def heads_by_layer(text: Mapping[str, object], windows: Sequence[int | None], heads: int | None) -> list[tuple[int, int]]:
    """(KV heads, head dim) of each layer; a layer of which the config says "no attention" has 0 heads.

    Raises `ValueError` naming what is missing or impossible.
    """
    count, head_dim = len(windows), _head_dim(text, heads)
    blocks = text.get("block_configs")
    if isinstance(blocks, Sequence) and heads:
        return [(_block_heads(block, heads), head_dim) for block in blocks[:count]]
    listed = text.get("num_kv_heads") or text.get("num_key_value_heads")
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        if len(listed) < count or not all(isinstance(n, int) and n > 0 for n in listed):
            raise ValueError(f"KV heads are listed for {len(listed)} of {count} layers, or one of them is not a positive number")
        return [(int(n), head_dim) for n in listed[:count]]
    kv_heads = _kv_heads(text, heads)
    # Gemma 4: layers with full attention may have their own head count and size.
    full = (whole(text, "num_global_key_value_heads") or kv_heads, whole(text, "global_head_dim") or head_dim)
    return [full if window is None else (kv_heads, head_dim) for window in windows]


def _block_heads(block: object, heads: int) -> int:
    attention = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(attention, Mapping):
        raise ValueError("block_configs does not say what attention each layer has")  # noqa: TRY004 - a bad config, not a bad call
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return 0
    group = whole(attention, "n_heads_in_group")
    if not group:
        raise ValueError("block_configs does not say n_heads_in_group")
    return heads // group


def _kv_heads(text: Mapping[str, object], heads: int | None) -> int:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    nested = text.get("attn_config")
    places = [text, nested] if isinstance(nested, Mapping) else [text]
    for place in places:
        for key in _KV_HEADS:
            if place.get(key) is not None:
                kv_heads = whole(place, key)
                if not kv_heads:
                    raise ValueError(f"{key} is {place[key]!r}: attention has at least one KV head")
                return kv_heads
    if heads is None:
        raise ValueError("the config names neither num_key_value_heads nor num_attention_heads: write in the model's own default")
    return heads


def _head_dim(text: Mapping[str, object], heads: int | None) -> int:
    if text.get("kv_lora_rank"):
        parts = (whole(text, "qk_nope_head_dim") or 0) + (whole(text, "qk_rope_head_dim") or 0)
        if parts:
            return parts
    for key in ("head_dim", "hidden_size_per_head", "attention_head_dim", "kv_channels"):
        if dim := whole(text, key):
            return dim
    hidden = next((n for key in ("hidden_size", "n_embd", "d_model") if (n := whole(text, key))), None)
    if hidden is None or heads is None:
        raise ValueError("the config gives no head_dim, and no hidden_size and num_attention_heads to derive it from")
    return hidden // heads
