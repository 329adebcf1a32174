"""Parameter counts against the published ones."""

from __future__ import annotations

import pytest

from kvwatch.capacity.weights import count_parameters, weight_bytes

LLAMA2_7B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "torch_dtype": "float16",
}
LLAMA3_8B = LLAMA2_7B | {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16"}
QWEN25_7B = {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}
QWEN3_06B = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(LLAMA2_7B, 6_738_415_616, id="llama-2-7b"),
        pytest.param(LLAMA3_8B, 8_030_261_248, id="llama-3-8b"),
        pytest.param(QWEN25_7B, 7_615_616_512, id="qwen2.5-7b"),
        pytest.param(QWEN3_06B, 596_049_920, id="qwen3-0.6b-tied"),
        pytest.param(LLAMA2_7B | {"model_type": "mixtral"}, None, id="experts-are-not-counted"),
        pytest.param({k: v for k, v in LLAMA2_7B.items() if k != "vocab_size"}, None, id="no-vocabulary"),
    ],
)
def test_parameters_are_the_published_count(text, expected):
    assert count_parameters(text) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(LLAMA3_8B, 16_060_522_496, id="16-bit"),
        pytest.param(LLAMA2_7B | {"torch_dtype": "float32"}, 13_476_831_232, id="float32-is-served-in-16-bits"),
        pytest.param({"text_config": LLAMA3_8B}, 16_060_522_496, id="nested"),
        pytest.param({"text_config": LLAMA3_8B, "vision_config": {}}, None, id="vision-tower-is-not-counted"),
        pytest.param(LLAMA3_8B | {"quantization_config": {"quant_method": "awq"}}, None, id="quantised"),
        pytest.param(LLAMA3_8B | {"torch_dtype": "float8_e4m3fn"}, None, id="other-type"),
    ],
)
def test_bytes_of_the_weights(config, expected):
    assert weight_bytes(config) == expected
