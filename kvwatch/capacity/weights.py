"""How many bytes a model's weights take, where ``config.json`` says enough to count them exactly.

Only plain dense decoders of the Llama shape are counted: gated MLP, RMS norms, rotary positions, no experts. For everything
else the size of the checkpoint files is the better source, and the answer here is ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvwatch.capacity.fields import text_config, whole
from kvwatch.capacity.heads import attention_heads, heads_by_layer
from kvwatch.capacity.kinds import LayerKind

_BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 2}
"""float32 checkpoints are served in 16 bits unless told otherwise."""
_COUNTED: Final = frozenset({"llama", "mistral", "qwen2", "qwen3"})


def weight_bytes(config: Mapping[str, object]) -> int | None:
    """Bytes of the weights on all GPUs together; ``None`` where the config does not say enough, or is quantised."""
    text = text_config(config)
    dtype = str(text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or config.get("dtype") or "float16")
    parameters = count_parameters(text)
    if parameters is None or dtype not in _BYTES or "quantization_config" in config or "vision_config" in config:
        return None
    return parameters * _BYTES[dtype]


def count_parameters(text: Mapping[str, object]) -> int | None:
    """Parameters of a dense decoder of the Llama shape; ``None`` for any other."""
    model = text.get("model_type")
    layers, hidden, inner, vocabulary = (
        whole(text, key) for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    )
    heads = attention_heads(text)
    if model not in _COUNTED or not (layers and hidden and inner and vocabulary and heads):
        return None
    one = heads_by_layer(text, [LayerKind.FULL])[0]
    if one is None:
        return None
    query, key_value = heads * one.key_dim, one.kv_heads * one.key_dim
    attention = hidden * query + 2 * hidden * key_value + query * hidden
    biases = query + 2 * key_value if model == "qwen2" else 0
    query_key_norms = 2 * one.key_dim if model == "qwen3" else 0
    layer = attention + biases + query_key_norms + 3 * hidden * inner + 2 * hidden
    embeddings = vocabulary * hidden * (1 if text.get("tie_word_embeddings") else 2)
    return layers * layer + embeddings + hidden
