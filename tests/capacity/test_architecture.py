"""Bytes per KV token, read from config.json, against published figures."""

from __future__ import annotations

import pytest

from kvwatch.capacity.architecture import kv_layout
from kvwatch.capacity.layers import NO_KV, layer_windows

KIB = 1024
LLAMA2_7B = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_size": 4096}
LLAMA3_8B = LLAMA2_7B | {"num_key_value_heads": 8}
LLAMA3_70B = {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_size": 2880,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}


@pytest.mark.parametrize(
    ("config", "dtype", "gpus", "expected"),
    [
        pytest.param(LLAMA2_7B, "auto", 1, 512 * KIB, id="7B-multi-head-fp16"),
        pytest.param(
            {k: v for k, v in LLAMA2_7B.items() if k != "num_key_value_heads"}, "auto", 1, 512 * KIB, id="kv-heads-default-to-heads"
        ),
        pytest.param(LLAMA2_7B, "fp8", 1, 256 * KIB, id="7B-fp8-halves"),
        pytest.param(LLAMA3_8B, "bfloat16", 1, 128 * KIB, id="grouped-query-8-heads"),
        pytest.param(LLAMA3_70B, "auto", 1, 320 * KIB, id="70B-grouped-query"),
        pytest.param(LLAMA3_70B, "auto", 4, 80 * KIB, id="70B-over-4-GPUs"),
        pytest.param(LLAMA3_70B, "auto", 8, 40 * KIB, id="70B-one-head-a-GPU"),
        pytest.param(LLAMA3_70B, "auto", 16, 40 * KIB, id="heads-replicated-past-8-GPUs"),
        pytest.param(LLAMA3_8B | {"head_dim": 256}, "auto", 1, 256 * KIB, id="head-dim-given-beats-derived"),
        pytest.param(DEEPSEEK_V3, "auto", 1, 61 * 576 * 2, id="latent-bf16-70272-bytes"),
        pytest.param(DEEPSEEK_V3, "auto", 8, 61 * 576 * 2, id="latent-is-replicated"),
        pytest.param(DEEPSEEK_V3, "fp8", 8, 61 * 576, id="latent-fp8"),
        pytest.param(DEEPSEEK_V3, "fp8_ds_mla", 8, 61 * 656, id="latent-fp8-ds-mla"),
        pytest.param(DEEPSEEK_V3 | {"index_head_dim": 128}, "auto", 8, 61 * (576 * 2 + 132), id="sparse-indexer-key"),
        pytest.param({"text_config": LLAMA3_8B, "vision_config": {}}, "auto", 1, 128 * KIB, id="nested-text-config"),
        pytest.param({"thinker_config": {"text_config": LLAMA3_8B}}, "auto", 1, 128 * KIB, id="nested-twice"),
        pytest.param({"n_layer": 12, "n_head": 12, "n_embd": 768}, "auto", 1, 36 * KIB, id="gpt2-names"),
        pytest.param(
            {"num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True},
            "auto",
            1,
            8 * KIB,
            id="multi-query",
        ),
        pytest.param(
            {"num_hidden_layers": 28, "num_attention_heads": 32, "multi_query_group_num": 2, "kv_channels": 128},
            "auto",
            1,
            28 * KIB,
            id="chatglm",
        ),
        pytest.param(
            {"n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}},
            "auto",
            1,
            160 * KIB,
            id="dbrx-nested-kv-heads",
        ),
        pytest.param({"num_hidden_layers": 2, "head_dim": 64, "num_kv_heads": [1, 3]}, "auto", 1, 2 * 64 * 2 * 4, id="kv-heads-per-layer"),
        pytest.param(
            {
                "num_hidden_layers": 3,
                "num_attention_heads": 64,
                "hidden_size": 8192,
                "block_configs": [
                    {"attention": {"n_heads_in_group": 8}},
                    {"attention": {"no_op": True}},
                    {"attention": {"n_heads_in_group": 16}},
                ],
            },
            "auto",
            1,
            2 * 128 * 2 * (8 + 4),
            id="nemotron-nas-blocks",
        ),
        pytest.param(
            {
                "model_type": "minicpm3",
                "num_hidden_layers": 62,
                "num_attention_heads": 40,
                "num_key_value_heads": 40,
                "kv_lora_rank": 256,
                "qk_nope_head_dim": 64,
                "qk_rope_head_dim": 32,
            },
            "auto",
            1,
            2 * 62 * 40 * 96 * 2,
            id="latent-names-but-full-keys",
        ),
        pytest.param(
            {"model_type": "longcat_flash", "num_layers": 28, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
            "auto",
            1,
            56 * 1152,
            id="two-attentions-a-layer",
        ),
    ],
)
def test_bytes_per_token_on_one_gpu(config, dtype, gpus, expected):
    assert kv_layout(config, kv_cache_dtype=dtype, tensor_parallel_size=gpus).bytes_per_token == expected


def test_the_recorded_servers_own_count():
    # vLLM 0.32 on the recordings' model: 1 GiB made 8192 blocks of 32 tokens, so 4096 bytes a token.
    config = {"model_type": "llama", "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    assert kv_layout(config).bytes_per_token == 2**30 // 8192 // 32


def test_4096_tokens_of_a_7b_are_2_gib():
    assert kv_layout(LLAMA2_7B).sequence_bytes(4096) == 2 * 2**30


@pytest.mark.parametrize(
    ("config", "gpus", "copies"), [(LLAMA3_70B, 8, 1), (LLAMA3_70B, 16, 2), (DEEPSEEK_V3, 8, 8)], ids=["split", "replicated", "latent"]
)
def test_copies_say_how_often_an_element_is_held(config, gpus, copies):
    assert kv_layout(config, tensor_parallel_size=gpus).copies == copies


def test_a_sliding_window_bounds_its_layers():
    layout = kv_layout(GPT_OSS_20B)
    layer = 2 * 8 * 64 * 2
    assert layout.bytes_per_token == 24 * layer
    assert layout.sequence_bytes(100) == 24 * layer * 100
    assert layout.sequence_bytes(8192) == 12 * layer * 8192 + 12 * layer * 128
    assert "12 of 24 layers keep at most 128 tokens" in layout.notes


def test_gemma4_full_layers_have_their_own_heads():
    config = {
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": 1,
        "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    assert kv_layout(config).sequence_bytes(1000) == 2 * 2 * (4 * 256 * 512 + 1 * 512 * 1000)


def test_layers_without_attention_cost_nothing_per_token_and_it_is_said():
    config = LLAMA3_8B | {"num_hidden_layers": 48, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}
    layout = kv_layout(config)
    assert layout.bytes_per_token == 12 * 4096
    assert layout.notes == ("36 of 48 layers have no KV per token; their fixed state per sequence is not counted",)


W = 4096


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        pytest.param({"sliding_window": W}, 2, [W, W], id="mistral-every-layer"),
        pytest.param({"sliding_window": None}, 2, [None, None], id="null-window"),
        pytest.param({"sliding_window": 0}, 2, [None, None], id="zero-window-is-off"),
        pytest.param({"sliding_window": W, "use_sliding_window": False}, 2, [None, None], id="qwen2-off"),
        pytest.param({"sliding_window": W, "use_sliding_window": True, "max_window_layers": 1}, 3, [None, W, W], id="qwen2-on"),
        pytest.param({"sliding_window": W, "sliding_window_pattern": 3}, 4, [W, W, None, W], id="pattern"),
        pytest.param({"sliding_window": W, "model_type": "gemma2"}, 2, [W, None], id="gemma2-default-pattern"),
        pytest.param({"hybrid_override_pattern": "M-M*"}, 4, [NO_KV, NO_KV, NO_KV, None], id="nemotron-h"),
        pytest.param({"attn_type_list": [0, 1]}, 2, [NO_KV, None], id="minimax"),
        pytest.param({"attn_layer_period": 8, "attn_layer_offset": 4}, 8, [NO_KV] * 4 + [None] + [NO_KV] * 3, id="jamba"),
        pytest.param({"full_attention_interval": 2}, 4, [NO_KV, None, NO_KV, None], id="qwen3-next"),
        pytest.param({"attn_layer_indices": [1]}, 3, [NO_KV, None, NO_KV], id="bamba"),
        pytest.param({"linear_attn_config": {"full_attn_layers": [2]}}, 3, [NO_KV, None, NO_KV], id="kimi-linear-counts-from-1"),
        pytest.param({"num_kv_shared_layers": 2}, 4, [None, None, NO_KV, NO_KV], id="gemma3n-shared"),
        pytest.param({"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 8192}, 2, [8192, None], id="llama4"),
        pytest.param({"layer_types": ["full_attention"] * 3}, 2, [None, None], id="extra-draft-layer-is-ignored"),
    ],
)
def test_which_layers_keep_how_much(text, count, expected):
    assert layer_windows(text, count) == expected


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        pytest.param({}, {}, "no num_hidden_layers", id="empty"),
        pytest.param(LLAMA2_7B | {"num_hidden_layers": 0}, {}, "num_hidden_layers is 0: a model has at least one layer", id="zero-layers"),
        pytest.param(LLAMA2_7B | {"num_hidden_layers": "many"}, {}, "is 'many'", id="layers-not-a-number"),
        pytest.param(LLAMA2_7B | {"num_key_value_heads": 0}, {}, "at least one KV head", id="zero-heads"),
        pytest.param({"num_hidden_layers": 2, "head_dim": 64}, {}, "neither num_key_value_heads nor", id="no-heads"),
        pytest.param({"num_hidden_layers": 2, "num_key_value_heads": 2}, {}, "no head_dim", id="no-size"),
        pytest.param(LLAMA2_7B | {"layer_types": ["warp_attention"] * 32}, {}, "'warp_attention' is not one", id="unknown-layer-type"),
        pytest.param(LLAMA2_7B | {"layer_types": ["full_attention"]}, {}, "1 of 32 layers", id="too-few-layer-types"),
        pytest.param(LLAMA2_7B | {"layer_types": ["mamba"] * 32}, {}, "nothing to plan", id="attention-free"),
        pytest.param(LLAMA2_7B | {"is_encoder_decoder": True}, {}, "encoder-decoder", id="encoder-decoder"),
        pytest.param(DEEPSEEK_V3 | {"compress_ratios": [4]}, {}, "deepseek_v3 compresses", id="compressed"),
        pytest.param(LLAMA2_7B, {"kv_cache_dtype": "nvfp4"}, "'nvfp4' is not one", id="unknown-dtype"),
        pytest.param(LLAMA2_7B, {"kv_cache_dtype": "fp8_ds_mla"}, "'fp8_ds_mla'", id="latent-dtype-without-latent"),
        pytest.param(LLAMA2_7B, {"tensor_parallel_size": 0}, "at least 1", id="no-gpu"),
        pytest.param(LLAMA2_7B, {"tensor_parallel_size": 3}, "32 attention heads cannot be split over 3", id="heads-not-divisible"),
        pytest.param(
            {"num_hidden_layers": 2, "num_attention_heads": 24, "num_key_value_heads": 6, "head_dim": 64},
            {"tensor_parallel_size": 4},
            "6 KV heads cannot be split over 4",
            id="kv-heads-not-divisible",
        ),
        pytest.param(LLAMA2_7B | {"num_kv_shared_layers": 32}, {}, "no earlier one", id="all-shared"),
        pytest.param(LLAMA2_7B | {"num_kv_heads": [8, 8]}, {}, "2 of 32 layers", id="heads-listed-too-few"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_reason(config, options, reason):
    with pytest.raises(ValueError, match=reason):
        kv_layout(config, **options)
