"""Write what transformers' config classes set when config.json leaves it out: ``kvwatch/plan/class_defaults.json``.

Needs transformers (no dependency of kvwatch): ``pip install transformers`` somewhere and run this with that Python, from the repository.
Each class is built three times. A number that changes with another one (a head size computed from the hidden size) is no default and is
left out; a list of layer types that repeats is kept as its cycle.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

TARGET = Path(__file__).parents[2] / "kvwatch" / "plan" / "class_defaults.json"
KEYS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "multi_query",
    "multi_query_group_num",
    "num_attention_groups",
    "attn_config",
    "new_decoder_architecture",
    "head_dim",
    "kv_channels",
    "attention_head_dim",
    "hidden_size_per_head",
    "hidden_size",
    "n_embd",
    "n_embed",
    "d_model",
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "n_ctx",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "attention_chunk_size",
    "no_rope_layer_interval",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "index_head_dim",
    "num_kv_shared_layers",
    "global_head_dim",
    "num_global_key_value_heads",
    "swa_head_dim",
    "swa_num_key_value_heads",
    "swa_v_head_dim",
    "full_attention_interval",
    "attn_layer_period",
    "attn_layer_offset",
    "attn_layer_indices",
    "full_attn_idxs",
    "layers_block_type",
    "attention_layers",
    "hybrid_override_pattern",
    "linear_attn_config",
    "linear_num_value_heads",
    "linear_num_key_heads",
    "linear_value_head_dim",
    "linear_key_head_dim",
    "linear_conv_kernel_dim",
    "mamba_ssm_dtype",
    "mamba_ssm_cache_dtype",
    "mamba_n_heads",
    "mamba_num_heads",
    "n_mamba_heads",
    "mamba_d_head",
    "mamba_head_dim",
    "mamba_headdim",
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
    "mamba_d_conv",
    "conv_kernel",
    "mamba_n_groups",
    "mamba_ngroups",
    "n_groups",
    "mamba_d_ssm",
    "mamba_expand",
    "expand",
    "num_heads",
    "conv_L_cache",
    "conv_dim",
    "layer_group_size",
    "use_cla",
    "cla_share_factor",
    "is_decoder",
    "use_bidirectional_attention",
    "original_max_position_embeddings",
    "compress_ratios",
    "layer_types",
    "block_types",
)
NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "text_model_config", "decoder_config", "lm_config")


def names(mapping: str) -> set[str]:
    return set(getattr(modeling_auto, mapping, {}))


GENERATES = names("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES") | names("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
GENERATES |= names("MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES")
MASKED = names("MODEL_FOR_MASKED_LM_MAPPING_NAMES")
TO_TEXT = names("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES") | names("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES")


def build(model_type, **changed):
    try:
        return CONFIG_MAPPING[model_type](**changed)
    except Exception as error:  # noqa: BLE001 - a class that cannot be built has no defaults; it is named below
        return error


def plain(config):
    return json.loads(json.dumps(config.to_dict(), default=str))


def inner_types(model_type):
    config = build(model_type)
    given = {} if isinstance(config, Exception) else plain(config)
    return {given[key]["model_type"] for key in NESTED if isinstance(given.get(key), dict) and given[key].get("model_type")}


def role(model_type, config, generating):
    """decoder, encoder or encoder-decoder: what the class is for, by the Auto classes it is registered with."""
    if getattr(config, "is_encoder_decoder", False) or model_type in TO_TEXT:
        return "encoder-decoder"
    return "decoder" if model_type in generating and model_type not in MASKED else "encoder"


def cycle(kinds):
    """The shortest piece whose repetition is the list; the whole list where there is none."""
    for length in range(1, len(kinds) // 2 + 1):
        if all(kind == kinds[i % length] for i, kind in enumerate(kinds)):
            return kinds[:length]
    return None


def layer_types(model_type, count_key, count):
    """How the class makes layer types for any number of layers: {"cycle": […], "last": …} or None where it is not understood."""
    found = None
    for layers in (count, 2 * count + 1, 2 * count + 4):
        config = build(model_type, **{count_key: layers})
        kinds = None if isinstance(config, Exception) else plain(config).get("layer_types")
        if not kinds or len(kinds) != layers:
            return None
        rule = {"cycle": cycle(kinds)}
        if rule["cycle"] is None:
            rule = {"cycle": cycle(kinds[:-1]), "last": kinds[-1]}
        if rule["cycle"] is None:
            return None
        if found is not None and rule["cycle"] != found["cycle"]:
            return None
        found = {**rule, **({"last": found["last"]} if found and "last" in found else {})}
    return found


def row(model_type, generating):
    config = build(model_type)
    if isinstance(config, Exception):
        return None
    given = plain(config)
    found = {key: given[key] for key in KEYS if given.get(key) not in (None, False) and key != "layer_types"}
    for key in ("num_attention_heads", "n_head", "hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer"):
        if isinstance(given.get(key), int):
            other = build(model_type, **{key: 2 * given[key]})
            if not isinstance(other, Exception):
                changed = plain(other)
                found = {k: v for k, v in found.items() if k == key or changed.get(k) == v}
    count_key = next((key for key in ("num_hidden_layers", "n_layer", "num_layers") if isinstance(given.get(key), int)), None)
    if given.get("layer_types") and count_key:
        rule = layer_types(model_type, count_key, given[count_key])
        if rule is not None:
            found["layer_types_rule"] = rule
        else:
            found["layer_types"] = given["layer_types"]
    for key in NESTED:
        inner = given.get(key)
        if isinstance(inner, dict) and inner.get("model_type"):
            found[key] = inner["model_type"]
    found["role"] = role(model_type, config, generating)
    return found


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    rows, unbuilt = {}, []
    generating = GENERATES | {inner for model_type in GENERATES & set(CONFIG_MAPPING_NAMES) for inner in inner_types(model_type)}
    for model_type in sorted(CONFIG_MAPPING_NAMES):
        found = row(model_type, generating)
        if found is None:
            unbuilt.append(model_type)
        else:
            rows[model_type] = found
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in rows.items()]
    source = f"transformers {transformers.__version__}: the defaults of its config classes; written by tests/tools/class_defaults.py"
    TARGET.write_text('{\n"source": ' + json.dumps(source) + ',\n"models": {\n' + ",\n".join(lines) + "\n}\n}\n")
    sys.stdout.write(f"{len(rows)} classes; not to be built: {', '.join(unbuilt)}\n")


if __name__ == "__main__":
    main()
