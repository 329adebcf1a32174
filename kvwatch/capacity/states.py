"""Bytes of the fixed state a layer without attention keeps for each sequence. Read from ``config.json``.

Shapes and dtypes follow vLLM 0.32 ``model_executor/layers/mamba/mamba_utils.py`` and the ``get_mamba_state_shape_from_config`` of its
models; the convolution keeps one column less than its kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvwatch.capacity.fields import HIDDEN, Config, first_whole, model_type, whole
from kvwatch.capacity.model import MAMBA2, LayerState

_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_FLOAT32_STATE: Final = frozenset({"nemotron_h"})
"""Model types whose state vLLM keeps in float32 when config.json does not say (``models/config.py``, NemotronHForCausalLMConfig)."""
_WITHOUT_GROUPS: Final = frozenset({"plamo2"})
"""Mamba 2 whose convolution does not run over B and C (vLLM 0.10 ``models/plamo2.py``, n_groups=0)."""
_CONV_BYTES: Final = 2


def layer_state(text: Config, drafts: int = 0) -> LayerState | None:
    """The state of one layer without attention; ``None`` where no key says what it is. ``drafts``: speculative tokens in a step."""
    for read in (_delta_net, _kimi_delta, _mamba2, _short_convolution, _mamba1, _linear_attention):
        if state := read(text, drafts):
            return state
    return None


def _state_bytes(text: Config, default: int) -> int:
    said = text.get("mamba_ssm_cache_dtype") or text.get("mamba_ssm_dtype")
    if said in _BYTES:
        return _BYTES[str(said)]
    return 4 if model_type(text) in _FLOAT32_STATE else default


def _delta_net(text: Config, drafts: int) -> LayerState | None:
    """Gated delta net (Qwen3-Next, Qwen3.5, OLMo hybrid)."""
    value_heads, key_heads = whole(text, "linear_num_value_heads"), whole(text, "linear_num_key_heads")
    value_dim, key_dim = whole(text, "linear_value_head_dim"), whole(text, "linear_key_head_dim")
    kernel = whole(text, "linear_conv_kernel_dim")
    if not (value_heads and key_heads and value_dim and key_dim and kernel):
        return None
    columns = 2 * key_heads * key_dim + value_heads * value_dim
    convolution = columns * (kernel - 1 + drafts) * _CONV_BYTES
    return LayerState("gated delta net", value_heads * value_dim * key_dim, _state_bytes(text, _CONV_BYTES), convolution)


def _kimi_delta(text: Config, drafts: int) -> LayerState | None:
    """Kimi delta attention: the state is float32 unless said otherwise."""
    linear = text.get("linear_attn_config")
    if not isinstance(linear, Mapping):
        return None
    heads, dim, kernel = whole(linear, "num_heads"), whole(linear, "head_dim"), whole(linear, "short_conv_kernel_size") or 4
    if not (heads and dim):
        return None
    convolution = 3 * heads * dim * (kernel - 1 + drafts) * _CONV_BYTES
    return LayerState("Kimi delta attention", heads * dim * dim, _state_bytes(text, 4), convolution)


def _mamba2(text: Config, drafts: int) -> LayerState | None:
    heads = first_whole(text, ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"))
    dim = first_whole(text, ("mamba_d_head", "mamba_head_dim", "mamba_headdim", "hidden_size_per_head"))
    if model_type(text) == "mamba2":
        heads, dim = whole(text, "num_heads"), whole(text, "head_dim")
    size = first_whole(text, ("mamba_d_state", "ssm_state_size", "state_size"))
    kernel = first_whole(text, ("mamba_d_conv", "conv_kernel"))
    groups = first_whole(text, ("mamba_n_groups", "mamba_ngroups", "n_groups")) or (model_type(text) not in _WITHOUT_GROUPS)
    if heads and not dim and (inner := _inner(text)):
        dim = inner // heads
    if not (heads and dim and size and kernel):
        return None
    columns = kernel - 1 + drafts
    inner = whole(text, "mamba_d_ssm") or heads * dim
    if model_type(text) == "mamba2":
        inner = whole(text, "intermediate_size") or inner
    return LayerState(
        MAMBA2,
        recurrent=heads * dim * size,
        recurrent_bytes=_state_bytes(text, _CONV_BYTES),
        convolution=inner * columns * _CONV_BYTES,
        groups=groups,
        group_bytes=2 * size * columns * _CONV_BYTES,
    )


def _mamba1(text: Config, _drafts: int) -> LayerState | None:
    size = first_whole(text, ("mamba_d_state", "state_size"))
    kernel = first_whole(text, ("mamba_d_conv", "conv_kernel"))
    inner = _inner(text)
    if not (size and kernel and inner):
        return None
    return LayerState("Mamba", inner * size, _state_bytes(text, _CONV_BYTES), inner * (kernel - 1) * _CONV_BYTES)


def _inner(text: Config) -> int | None:
    if model_type(text) in ("mamba", "falcon_mamba") and (given := whole(text, "intermediate_size")):
        return given
    expand, hidden = first_whole(text, ("mamba_expand", "expand")), first_whole(text, HIDDEN)
    return expand * hidden if expand and hidden else None


def _short_convolution(text: Config, _drafts: int) -> LayerState | None:
    """LFM2: nothing but the last columns of a convolution."""
    kernel, columns = whole(text, "conv_L_cache"), first_whole(text, ("conv_dim", *HIDDEN))
    return LayerState("short convolution", 0, _CONV_BYTES, columns * (kernel - 1) * _CONV_BYTES) if kernel and columns else None


def _linear_attention(text: Config, _drafts: int) -> LayerState | None:
    """Lightning attention (MiniMax, Ling): a square of the head size for each query head."""
    if not (text.get("attn_type_list") or text.get("layer_group_size")):
        return None
    heads = whole(text, "num_attention_heads")
    hidden = first_whole(text, HIDDEN)
    dim = whole(text, "head_dim") or (hidden // heads if hidden and heads else None)
    return LayerState("linear attention", heads * dim * dim, _CONV_BYTES) if heads and dim else None
