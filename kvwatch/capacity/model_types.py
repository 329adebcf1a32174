"""What vLLM does with single model types that config.json does not say. Each row names where it was read."""

from __future__ import annotations

from typing import Final

LATENT_TYPES: Final = frozenset(
    {
        "axk1",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_mtp",
        "dots3_note",
        "glm5_next",
        "glm5_next_text",
        "glm_moe_dsa",
        "glm4_moe_lite",
        "kimi_k2",
        "kimi_linear",
        "longcat_flash",
        "pangu_ultra_moe",
        "bailing_hybrid",
        "hy_v4",
        "mistral4",
    }
)
"""Model types that vLLM 0.32 serves with one latent vector per token (is_deepseek_mla); elsewhere it caches full keys and values."""
FULL_DESPITE_RANK: Final = frozenset({"minicpm3"})
ATTENTION_PER_LAYER: Final = {"longcat_flash": 2}
"""Model types whose layers, as config.json counts them, hold more than one attention each (vLLM ``models/longcat_flash.py``)."""
STATE_IN_EVERY_LAYER: Final = frozenset({"zamba2"})
"""Model types whose layers with attention have a state too, whatever they are called (vLLM ``models/zamba2.py``)."""
ONE_MORE: Final = frozenset({"cohere2", "cohere2_moe"})
"""A window of n is n + 1 tokens there: the token itself and n before it (vLLM 0.32 ``models/commandr.py``, ``models/cohere2_moe.py``)."""
ONE_MORE_SINCE: Final = (0, 30)
"""The first vLLM seen with that token; in 0.28 and before the window is n."""
ONE_KIND_ONLY: Final = frozenset({"qwen2", "qwen3"})
"""A window for some layers only stops the server (vLLM 0.6 to 0.32 ``models/qwen2.py``, its assertion on max_window_layers)."""
KNOWN_ELSEWHERE: Final = frozenset(
    {
        "baichuan",
        "internlm",
        "internlm2",
        "internlm3",
        "orion",
        "aquila",
        "xverse",
        "minicpm",
        "minicpm3",
        "chatglm",
        "dbrx",
        "exaone",
        "exaone4",
        "stablelm",
        "qwen",
        "telechat",
        "teleflm",
        "solar",
        "hunyuan",
        "hunyuan_v1_moe",
        "hunyuan_v1_dense",
        "mimo",
        "mimo_v2_flash",
        "mimo_v2",
        "step3p5",
        "plamo2",
        "bailing_moe",
        "bailing_moe_linear",
        "grok-1",
        "arctic",
        "decilm",
        "nemotron-nas",
        "minimax_m2",
        "minimax_text_01",
        "RefinedWeb",
        "RefinedWebModel",
        "mpt",
    }
)
"""Model types without a class in transformers whose layers vLLM's own model says (``model_executor/models``, 0.10 to 0.32)."""


STATE_BESIDE_ATTENTION: Final = frozenset({"falcon_h1"})
"""Model types whose every layer has attention and a state (vLLM ``models/falcon_h1.py``)."""
STATES_ONLY: Final = frozenset({"mamba", "mamba2", "falcon_mamba"})
"""Model types without attention (vLLM ``models/mamba.py``, ``models/mamba2.py``)."""
UNDERSTOOD_KEYS: Final = frozenset(
    {
        "num_kv_shared_layers",
        "use_cla",
        "cla_share_factor",
        "per_layer_config",
        "hidden_size_per_layer_input",
        "vocab_size_per_layer_input",
        "num_key_value_heads_per_layer",
        "attention_types",
        "per_layer_attention_config",
    }
)
"""Keys with such a name that are read elsewhere, or say nothing of the cache."""
