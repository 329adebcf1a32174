"""Bytes per KV token, read from config.json, against published figures."""

from __future__ import annotations

import pytest

from kvwatch.capacity.architecture import read_model
from kvwatch.capacity.cache import ServerSetup, kv_cache
from kvwatch.capacity.kinds import read_kinds
from kvwatch.plan.sources import class_defaults
from kvwatch.plan.subject import Given, serving_of

KIB = 1024


def cache_of(config, **server):
    return kv_cache(read_model(config), ServerSetup(**server))


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
    assert cache_of(config, kv_dtype=dtype, gpus=gpus).bytes_per_token == expected


def test_the_recorded_servers_own_count():
    # vLLM 0.32 on the recordings' model: 1 GiB made 8192 blocks of 32 tokens, so 4096 bytes a token.
    config = {"model_type": "llama", "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    assert cache_of(config, block_size=32).blocks(2**30) == 8192


def test_4096_tokens_of_a_7b_are_2_gib():
    cache = cache_of(LLAMA2_7B)
    assert cache.need(4096) * cache.bytes_per_block == 2 * 2**30


def test_window_layers_admit_their_window_and_the_step_budget():
    # 12 full layers and 12 with a window of 128: two groups; blocks of 16. 8192 tokens: 512 + ceil((127 + 2048) / 16) + 1
    cache = cache_of(GPT_OSS_20B, block_size=16, version=(0, 25), batched_tokens=2048)
    assert (len(cache.groups), cache.need(8192)) == (2, 512 + 137)
    assert "12 of 24 layers keep at most 128 tokens" in read_model(GPT_OSS_20B).notes


@pytest.mark.parametrize(
    ("server", "window_blocks"),
    [
        pytest.param({"version": (0, 25)}, 137, id="one-batch-in-flight"),
        pytest.param({"version": (0, 26)}, 265, id="two-with-asynchronous-scheduling"),
        pytest.param({"version": (0, 26), "async_scheduling": False}, 137, id="one-without-it"),
        pytest.param({"version": (0, 26), "stages": 2}, 265, id="one-for-each-stage"),
        pytest.param({"version": (0, 32), "batched_tokens": None}, 9, id="budget-unknown-the-window-alone"),
        pytest.param({"version": (0, 8)}, 512, id="no-hybrid-manager-before-0.9"),
        pytest.param({"hybrid_manager": False}, 512, id="hybrid-manager-switched-off"),
    ],
)
def test_what_a_window_group_reserves_depends_on_the_server(server, window_blocks):
    cache = cache_of(GPT_OSS_20B, **{"block_size": 16, "batched_tokens": 2048} | server)
    assert cache.need(8192) - 512 == (window_blocks if len(cache.groups) == 2 else 0)


@pytest.mark.parametrize(
    ("stages", "layers", "most"), [(2, 32, 16), (3, 32, 11), (2, 5, 3), (4, 61, 16)], ids=["even", "one-over", "odd", "deepseek"]
)
def test_the_fullest_stage_decides(stages, layers, most):
    cache = cache_of(LLAMA3_8B | {"num_hidden_layers": layers}, stages=stages)
    assert cache.bytes_per_token == most * 4096


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
    assert cache_of(config).bytes_per_token == 2 * 2 * (4 * 256 + 1 * 512)


def test_latent_ranks_may_differ_by_layer():
    config = DEEPSEEK_V3 | {"num_hidden_layers": 2, "per_layer_config": {"01": {"kv_lora_rank": 256}}}
    assert cache_of(config).bytes_per_token == (512 + 64 + 256 + 64) * 2


def test_states_cost_nothing_per_token_but_blocks_of_every_request():
    config = read_only("qwen3_next", num_hidden_layers=8)
    caching, without = (cache_of_class(config, prefix_caching=on, version=(0, 28)) for on in (True, False))
    # 2 layers with attention: 2 heads x 256 x 2 x 2 bytes each; 6 with a state in 3 groups, 2 blocks each or 1
    assert caching.bytes_per_token == 2 * 2048
    assert caching.need(1) == 1 + 3 * 2
    assert without.need(1) == 1 + 3


def read_only(model_type, **changed):
    return {"model_type": model_type, **changed}


def cache_of_class(config, **server):
    return kv_cache(read_model(config, class_defaults()), ServerSetup(**server))


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        pytest.param({"model_type": "gemma", "num_hidden_layers": 2, "hidden_size": 2048, "num_key_value_heads": 1}, 2048, id="gemma"),
        pytest.param({"model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 1024, "num_key_value_heads": 8}, 4096, id="qwen3-128"),
        pytest.param({"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16}, 98304, id="alias-given"),
        pytest.param(
            {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 2048, "num_attention_heads": 16}, 2 * 8192, id="derived"
        ),
    ],
)
def test_what_the_class_sets_counts_where_the_config_is_silent(config, bytes_per_token):
    assert cache_of_class(config).bytes_per_token == bytes_per_token


@pytest.mark.parametrize(
    ("quantization", "since", "dtype"),
    [
        pytest.param({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, (0, 14), "fp8_e4m3", id="top"),
        pytest.param({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, (0, 14), "fp8_e4m3", id="nested"),
        pytest.param({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, (0, 14), "fp8_e4m3", id="scheme"),
        pytest.param({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, (0, 15), "fp8", id="ct"),
        pytest.param({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, (), None, id="ct-without"),
        pytest.param({"quant_method": "modelopt", "kv_cache_quant_algo": "INT3"}, (), None, id="unknown-is-auto"),
    ],
)
def test_auto_follows_the_checkpoint_from_the_release_that_does(quantization, since, dtype):
    config = LLAMA3_8B | {"quantization_config": quantization}
    model = read_model(config)
    assert (model.own_kv_dtype, model.own_dtype_since) == (dtype, since)
    if dtype is not None:
        before = (since[0], since[1] - 1)
        assert (
            kv_cache(model, ServerSetup(version=since)).bytes_per_token * 2 == kv_cache(model, ServerSetup(version=before)).bytes_per_token
        )
        assert kv_cache(model, ServerSetup(kv_dtype="bfloat16")).bytes_per_token == 131072


W = 4096


F, SLIDING, STATE, NONE = "full", "window", "state", "none"


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        pytest.param({"sliding_window": W}, 2, [SLIDING, SLIDING], id="mistral-every-layer"),
        pytest.param({"sliding_window": None}, 2, [F, F], id="null-window"),
        pytest.param({"sliding_window": 0}, 2, [F, F], id="zero-window-is-off"),
        pytest.param({"sliding_window": W, "use_sliding_window": False}, 2, [F, F], id="qwen2-off"),
        pytest.param({"sliding_window": W, "use_sliding_window": True, "max_window_layers": 1}, 3, [F, SLIDING, SLIDING], id="qwen2-on"),
        pytest.param({"sliding_window": W, "sliding_window_pattern": 3}, 4, [SLIDING, SLIDING, F, SLIDING], id="pattern"),
        pytest.param({"sliding_window": W, "sliding_window_pattern": "LG"}, 3, [SLIDING, F, F], id="exaone-letters-last-is-global"),
        pytest.param({"sliding_window": W, "hybrid_layer_pattern": [0, 1]}, 2, [F, SLIDING], id="mimo-flags"),
        pytest.param({"sliding_window": [W, None]}, 2, [SLIDING, F], id="a-window-for-each-layer"),
        pytest.param({"hybrid_override_pattern": "M-M*"}, 4, [STATE, NONE, STATE, F], id="nemotron-h"),
        pytest.param({"attn_type_list": [0, 1]}, 2, [STATE, F], id="minimax"),
        pytest.param({"attn_layer_period": 8, "attn_layer_offset": 4}, 8, [STATE] * 4 + [F] + [STATE] * 3, id="jamba"),
        pytest.param({"full_attention_interval": 2}, 4, [STATE, F, STATE, F], id="qwen3-next"),
        pytest.param({"layer_group_size": 2}, 5, [STATE, F, STATE, F, F], id="ling-what-is-over-has-attention"),
        pytest.param({"attn_layer_indices": [1]}, 3, [STATE, F, STATE], id="bamba"),
        pytest.param({"linear_attn_config": {"full_attn_layers": [2]}}, 3, [STATE, F, STATE], id="kimi-linear-counts-from-1"),
        pytest.param({"mamba_step": 2}, 4, [STATE, F, STATE, F], id="plamo-2"),
        pytest.param({"sliding_window": W, "_sliding_window_pattern": 2}, 3, [SLIDING, F, SLIDING], id="pattern-as-newer-files-write-it"),
        pytest.param({"sliding_window": W, "global_attn_every_n_layers": 2}, 3, [SLIDING, F, SLIDING], id="afmoe"),
        pytest.param(
            {"model_type": "modernbert-decoder", "sliding_window": W, "global_attn_every_n_layers": 2},
            3,
            [F, SLIDING, F],
            id="modernbert-decoder-begins-with-full",
        ),
        pytest.param({"attention_chunk_size": W, "no_rope_layers": [1, 0, 1]}, 3, ["chunk", F, "chunk"], id="llama4-by-positions"),
        pytest.param({"attention_chunk_size": W, "no_rope_layer_interval": 2}, 3, ["chunk", F, "chunk"], id="llama4-by-interval"),
        pytest.param({"no_rope_layers": [1, 0, 1]}, 3, [F, F, F], id="positions-without-chunks-say-nothing"),
        pytest.param({"sliding_window": W, "mlp_layer_types": ["a", "b", "c"]}, 3, [SLIDING] * 3, id="a-list-of-experts-says-nothing"),
        pytest.param({"num_kv_shared_layers": 2}, 4, [F, F, NONE, NONE], id="gemma3n-shared"),
        pytest.param({"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 8192}, 2, ["chunk", F], id="llama4"),
        pytest.param({"layer_types": ["full_attention"] * 3}, 2, [F, F], id="extra-draft-layer-is-ignored"),
    ],
)
def test_which_layers_keep_how_much(text, count, expected):
    read = read_kinds(text, count, known_type=True)
    assert (list(read.kinds), read.unknown) == (expected, ())


@pytest.mark.parametrize(
    ("text", "known"),
    [
        pytest.param({"sliding_window": 128, "swa_layer_map": [0, 1, 1]}, True, id="window-with-a-pattern-of-another-name"),
        pytest.param({"sliding_window": 128, "model_type": "novel"}, False, id="window-of-an-unknown-type"),
        pytest.param({"mamba_layers": 3}, True, id="states-of-another-name"),
        pytest.param({"hybrid_ratio": 4}, True, id="hybrid-of-another-name"),
        pytest.param({"share_kv_every": 2}, True, id="shared-of-another-name"),
        pytest.param({"model_type": "novel"}, False, id="a-type-nobody-read"),
        pytest.param({"sliding_window": 128, "layer_pattern": "SSF"}, True, id="letters-of-another-name"),
        pytest.param({"sliding_window": 128, "attention_kinds": [0, 1, 1]}, True, id="numbers-of-another-name"),
        pytest.param({"sliding_window": 128, "global_layers": [1]}, True, id="chosen-layers-of-another-name"),
        pytest.param({"sliding_window": 128, "full_attention_every": 3}, True, id="period-of-another-name"),
        pytest.param({"sliding_window": [128, None, 128], "mb_per_layer": 2}, True, id="phi-4-flash-windows-beside-states"),
    ],
)
def test_what_is_not_understood_counts_in_full_and_says_so(text, known):
    read = read_kinds(text, 3, known_type=known)
    assert list(read.kinds) == ["full"] * 3
    assert read.unknown


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
        pytest.param({"model_type": "bert", "num_hidden_layers": 2}, {}, "encoder-only: it generates no tokens", id="encoder"),
        pytest.param({"architectures": ["ModernBertForMaskedLM"], "num_hidden_layers": 2}, {}, "encoder-only", id="encoder-by-class"),
        pytest.param({"model_type": "new", "num_hidden_layers": 2}, {}, "encoder-only", id="encoder-of-a-type-that-is-a-common-word"),
        pytest.param({"_class_name": "FluxTransformer2DModel", "num_layers": 19}, {}, "no language model", id="diffusion"),
        pytest.param({"model_type": "prithvi", "num_hidden_layers": 2}, {}, "no language model", id="images-of-the-earth"),
        pytest.param({"model_type": "rwkv7", "num_hidden_layers": 2}, {}, "has no attention", id="states-nobody-read"),
        pytest.param(LLAMA2_7B | {"cross_attention_layers": [3]}, {}, "layers with cross attention", id="cross-attention-beside-the-text"),
        pytest.param(
            LLAMA2_7B | {"layer_types": ["recurrent", "full_attention"] * 16}, {}, "does not know its size", id="state-of-unknown-size"
        ),
        pytest.param(
            LLAMA2_7B | {"model_type": "qwen2", "sliding_window": W, "use_sliding_window": True, "max_window_layers": 8},
            {},
            "vLLM refuses to start qwen2 with a window for some layers only .max_window_layers 8 of 32.",
            id="qwen2-window-for-some",
        ),
        pytest.param(LLAMA2_7B | {"is_encoder_decoder": True}, {}, "encoder-decoder", id="encoder-decoder"),
        pytest.param(DEEPSEEK_V3 | {"compress_ratios": [4]}, {}, "deepseek_v3 compresses", id="compressed"),
        pytest.param(LLAMA2_7B, {"kv_dtype": "int3"}, "'int3' is not one", id="unknown-dtype"),
        pytest.param(LLAMA2_7B, {"stages": 33}, "32 layers cannot be divided over 33", id="more-stages-than-layers"),
        pytest.param(LLAMA2_7B, {"kv_dtype": "fp8_ds_mla"}, "'fp8_ds_mla'", id="latent-dtype-without-latent"),
        pytest.param(LLAMA2_7B, {"gpus": 0}, "at least 1", id="no-gpu"),
        pytest.param(LLAMA2_7B | {"hidden_size": 31}, {}, "31 over 32 attention heads", id="heads-of-no-size"),
        pytest.param(LLAMA2_7B, {"gpus": 3}, "32 attention heads cannot be split over 3", id="heads-not-divisible"),
        pytest.param(
            {"num_hidden_layers": 2, "num_attention_heads": 24, "num_key_value_heads": 6, "head_dim": 64},
            {"gpus": 4},
            "6 KV heads cannot be split over 4",
            id="kv-heads-not-divisible",
        ),
        pytest.param(LLAMA2_7B | {"num_kv_shared_layers": 32}, {}, "no earlier one", id="all-shared"),
        pytest.param(LLAMA2_7B | {"num_kv_heads": [8, 8]}, {}, "2 of 32 layers", id="heads-listed-too-few"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_reason(config, options, reason):
    with pytest.raises(ValueError, match=reason):
        cache_of(config, **options)


def test_a_speech_model_named_like_encoders_of_images_is_none():
    with pytest.raises(ValueError, match="vLLM generates no text with vits"):
        read_model({"model_type": "vits"}, class_defaults())


def test_a_language_model_that_diffuses_text_is_one():
    assert read_model(LLAMA2_7B | {"architectures": ["DiffusionGemmaForBlockDiffusion"]}).layers


DBRX = {"model_type": "dbrx", "n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}}
DEEPSEEK_PLAIN = {
    "model_type": "deepseek_v2",
    "num_hidden_layers": 12,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "hidden_size": 1280,
    "kv_lora_rank": None,
    "qk_rope_head_dim": 0,
    "qk_nope_head_dim": 0,
}
QWEN3 = {"model_type": "qwen3", "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
KIMI_LINEAR = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 8,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {"full_attn_layers": [2, 4, 6, 8], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4},
}
PLAMO2 = {
    "model_type": "plamo2",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "hidden_size": 4096,
    "hidden_size_per_head": 128,
    "mamba_step": 2,
    "mamba_num_heads": 64,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(DBRX, 40 * 8 * 2 * 128 * 2, id="kv-heads-nested-beside-a-default-of-the-class"),
        pytest.param(DEEPSEEK_PLAIN, 12 * 10 * 2 * 128 * 2, id="latent-type-without-latent-has-heads-of-its-hidden-size"),
        pytest.param(
            {"model_type": "qwen3_asr", "thinker_config": {"text_config": QWEN3}}, 28 * 8 * 2 * 128 * 2, id="text-two-levels-down"
        ),
        pytest.param(KIMI_LINEAR, 4 * (512 + 64) * 2, id="layers-chosen-by-the-file-and-not-by-the-class"),
        pytest.param(PLAMO2, 16 * 4 * 2 * 128 * 2, id="plamo-2-attends-in-every-second-layer"),
        pytest.param(
            {"model_type": "chatglm", "num_layers": 28, "num_attention_heads": 32, "hidden_size": 4096}
            | {"multi_query_attention": False, "multi_query_group_num": 2, "kv_channels": 128},
            28 * 32 * 2 * 128 * 2,
            id="groups-named-and-off",
        ),
    ],
)
def test_what_the_file_says_goes_before_what_its_class_would(config, expected):
    model = read_model(config, class_defaults())
    assert (kv_cache(model, ServerSetup()).bytes_per_token, model.unknown) == (expected, ())


COHERE2 = {"sliding_window": 4096, "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "num_hidden_layers": 4}


@pytest.mark.parametrize("model_type", ["cohere2", "cohere2_moe"])
@pytest.mark.parametrize(
    ("version", "window"),
    [((0, 8, 5), 4096), ((0, 28), 4096), ((0, 30), 4097), ((0, 30, 2), 4097), ((0, 34), 4097), (None, 4097)],
)
def test_coheres_window_holds_the_token_itself_too_since_0_30(model_type, version, window):
    config = LLAMA3_8B | COHERE2 | {"model_type": model_type}
    model = read_model(config, version=version) if version else read_model(config)
    assert [layer[0].window for layer in model.layers] == [window, window, window, None]


@pytest.mark.parametrize(("version", "window"), [("0.28.0", 4096), ("0.30.0", 4097), (None, 4097)])
def test_the_window_is_that_of_the_vllm_that_is_planned_for(version, window):
    serving = serving_of(
        LLAMA3_8B | COHERE2 | {"model_type": "cohere2", "max_position_embeddings": 8192}, {}, Given(version=version), None, None
    )
    assert serving.model.layers[0][0].window == window


def test_another_models_window_is_the_configs_own_in_every_vllm():
    for version in ((0, 28), (0, 30), (0, 34)):
        assert read_model(LLAMA3_8B | COHERE2 | {"model_type": "gemma3_text"}, version=version).layers[0][0].window == 4096


@pytest.mark.parametrize("model_type", ["csm", "bark", "moshi_depth", "musicgen_decoder"])
def test_what_generates_sounds_or_is_a_part_of_another_model_is_not_called_an_encoder(model_type):
    with pytest.raises(ValueError, match=f"vLLM generates no text with {model_type}"):
        read_model(LLAMA2_7B | {"model_type": model_type}, class_defaults())
