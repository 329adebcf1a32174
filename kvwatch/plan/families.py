"""Families of models whose layers keep different things, by the name a server gives its model.

A page without ``kv_cache_size_tokens`` (vLLM before 0.24) shows blocks and tokens of a block; their product is the pool only where all
layers are of one kind, and nothing on the page says whether they are but the name.
"""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = [
    "gptoss",
    "gemma2",
    "gemma3",
    "gemma4",
    "cohere2",
    "commandr7b",
    "commanda",
    "mistral7binstructv01",
    "ministral",
    "qwen3next",
    "qwen35",
    "qwen36",
    "kimilinear",
    "jamba",
    "bamba",
    "zamba",
    "mamba",
    "nemotronh",
    "nemotronnano",
    "nemotron3",
    "falconh1",
    "granite4",
    "lfm2",
    "minimaxtext",
    "minimaxm1",
    "plamo2",
    "phi4miniflash",
    "olmo3",
    "exaone4",
    "llama4",
    "mimov2",
    "step35",
    "afmoe",
    "trinity",
    "ling25",
    "ringlinear",
    "linglinear",
    "deepseekv32",
    "deepseekv4",
]
_ORDINARY_BLOCKS: Final = frozenset({1, 8, 16, 32, 64, 128, 256})
_NO_LETTER: Final = re.compile(r"[^a-z0-9]")


def family_of_several_kinds(model_name: str, block_size: int | None) -> str | None:
    """Why blocks times tokens of a block is no capacity for this server, in words; ``None`` where nothing says so."""
    if block_size is not None and block_size not in _ORDINARY_BLOCKS:
        return f"blocks of {block_size} tokens are those of a model with states beside attention"
    plain = _NO_LETTER.sub("", model_name.lower())
    family = next((name for name in _NAMES if name in plain), None)
    return None if family is None else f"the layers of {model_name} keep different things"
