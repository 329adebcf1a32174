"""A model made small keeps in each layer what the whole one keeps; a log loses what is a machine's own."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from plan_oracle import SERVERS, kept, shrunk

from kvwatch.capacity.architecture import read_model
from kvwatch.plan.sources import class_defaults

with gzip.open(SERVERS.with_name("published.json.gz"), "rt", encoding="utf-8") as stream:
    PUBLISHED = {name: case["config"] for name, case in json.load(stream).items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_layer_of_a_model_made_small_keeps_what_the_whole_models_does(name):
    whole = read_model(PUBLISHED[name], class_defaults())
    for layers in (8, len(whole.layers)):
        assert read_model(shrunk(PUBLISHED[name], layers), class_defaults()).layers == whole.layers[:layers]


def test_layers_and_lists_of_them_are_cut_and_what_weighs_is_small():
    config = {"num_hidden_layers": 3, "layer_types": ["a", "b", "c"], "vocab_size": 128256, "num_experts": None, "head_dim": 64, "x": [1]}
    assert shrunk(config | {"quantization_config": {"quant_method": "fp8"}}, 2) == {
        "num_hidden_layers": 2,
        "layer_types": ["a", "b"],
        "vocab_size": 259,
        "num_experts": None,
        "head_dim": 64,
        "x": [1],
    }
    assert shrunk({"model_type": "both", "text_config": config}, 2)["text_config"]["layer_types"] == ["a", "b"]


def test_a_log_is_kept_without_what_is_this_machines():
    folder = Path("/somewhere/small")
    log = (
        "\x1b[32mINFO [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='/somewhere/small'\x1b[0m\n"
        "INFO non-default args: {'port': 41234}\nINFO rank 0 at tcp://10.1.2.3:5555\nWARNING something else\n"
        "INFO GPU KV cache size: 5,120 tokens\n"
    )
    assert kept(log, folder, "small", 41234) == [
        "INFO [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='/models/small'",
        "INFO non-default args: {'port': 8000}",
        "INFO GPU KV cache size: 5,120 tokens",
    ]
