"""Reading a parsed ``config.json``: the part that describes the language model, and its numbers under their several names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

Config = Mapping[str, object]

NESTED: Final = ("text_config", "language_config", "llm_config", "thinker_config", "text_model_config", "decoder_config", "lm_config")
"""Where multimodal configs keep their language model, the first that is there."""
_MOST: Final = 10**9
"""More than anything a config counts; tokens, elements and layers beyond it are no numbers of a model."""
_MOST_LAYERS: Final = 10_000
LAYER_COUNT: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS: Final = ("num_attention_heads", "n_head", "n_heads")
HIDDEN: Final = ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim")


def text_config(config: Config) -> Config:
    """The part that describes the language model: multimodal configs nest it."""
    for key in NESTED:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            return text_config(nested)
    return config


def whole(config: Config, key: str) -> int | None:
    """A number of the config that counts something; ``None`` where it is missing, null or not a whole number >= 0."""
    value = config.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def first_whole(config: Config, keys: Sequence[str]) -> int | None:
    """The first of these that is a number above 0."""
    return next((n for key in keys if (n := whole(config, key))), None)


def model_type(config: Config) -> str:
    """``model_type``, or an empty text."""
    return str(config.get("model_type") or "")


def layer_count(text: Config) -> int:
    """Layers as the config counts them; raises `ValueError` where it does not."""
    for key in LAYER_COUNT:
        if text.get(key) is not None:
            count = whole(text, key)
            if not count:
                raise ValueError(f"{key} is {text[key]!r}: a model has at least one layer")
            if count > _MOST_LAYERS:
                raise ValueError(f"{key} is {count}: no model has so many layers")
            return count
    for key in ("layers_block_type", "hybrid_override_pattern", "layer_types", "block_configs", "attn_type_list"):
        kinds = text.get(key)
        if isinstance(kinds, Sequence) and kinds:
            return len(kinds)
    raise ValueError("not a model's config.json that kvwatch understands: it has no num_hidden_layers")


def listed(text: Config, key: str) -> list[object]:
    """A list of the config, one entry for a layer; empty where there is none."""
    value = text.get(key)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
