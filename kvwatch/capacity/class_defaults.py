"""What config.json leaves out because it is its class's default, put back from a table of those defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvwatch.capacity.fields import HEADS, HIDDEN, LAYER_COUNT, NESTED, Config, model_type

Defaults = Mapping[str, Mapping[str, object]]
"""model_type -> what its config class sets when config.json leaves it out."""


_ONLY_OF_THE_TABLE: Final = ("layer_types_rule", "role")
"""What the table of classes says in its own words; in a config.json these keys mean nothing."""


def complete(config: Config, defaults: Defaults) -> Config:
    """``config`` with what its classes set where it is silent; what it says itself, or sets to null, stays."""
    config = {key: value for key, value in config.items() if key not in _ONLY_OF_THE_TABLE}
    known = defaults.get(model_type(config), {})
    found: dict[str, object] = {}
    for key, value in known.items():
        inner = defaults.get(value) if isinstance(value, str) else None
        if inner is not None and key.endswith("_config") and value != model_type(config):
            if key not in config and _said_otherwise(key, config):
                continue
            given = config.get(key)
            found[key] = complete({"model_type": value} | dict(given if isinstance(given, Mapping) else {}), defaults)
        elif key not in config and not _said_otherwise(key, config):
            found[key] = value
    return {**config, **_text_parts(config, defaults), **found}


_SAME_FACT: Final = (
    LAYER_COUNT,
    HEADS,
    HIDDEN,
    ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups", "attn_config"),
    ("head_dim", "qk_rope_head_dim"),
    (
        "layer_types_rule",
        "layer_types",
        "layers_block_type",
        "hybrid_override_pattern",
        "attn_type_list",
        "attn_layer_indices",
        "full_attn_idxs",
        "attn_layer_period",
        "full_attention_interval",
        "sliding_window_pattern",
        "hybrid_layer_pattern",
        "attention_layers",
        "block_types",
        "linear_attn_config",
        "_sliding_window_pattern",
        "global_attn_every_n_layers",
        "no_rope_layers",
        "no_rope_layer_interval",
    ),
    NESTED,
    ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"),
)
"""Names of one thing: a default of the class counts only where the config says it under none of them."""


def _said_otherwise(key: str, config: Config) -> bool:
    if key == "layer_types_rule" and config.get("use_sliding_window") is True:
        return True
    return any(key in names and any(config.get(name) not in (None, [], {}) for name in names) for names in _SAME_FACT)


def _text_parts(config: Config, defaults: Defaults) -> dict[str, object]:
    """Nested language models of a type of their own, under whatever key they stand."""
    return {
        key: complete(value, defaults)
        for key, value in config.items()
        if isinstance(value, Mapping) and (key in NESTED or model_type(value) in defaults) and model_type(value) != model_type(config)
    }
