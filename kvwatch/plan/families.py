"""Families of models whose layers keep different things, by the name a server gives its model.

A page without ``kv_cache_size_tokens`` (vLLM before 0.24) shows blocks and tokens of a block; their product is the pool only where all
layers are of one kind, and nothing on the page says whether they are but the name.
"""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = [
    "gptoss",
    "gemma2(?!b)",
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
_ONE_KIND: Final = re.compile(
    r"llama[23]|codellama|qwen(?:15|2|25|3)(?!next|5|6|8)|mixtral|deepseek(?:v2|v3(?!2)|r1|coder)|phi4(?!mini)|opt\d|gpt2|falcon(?!h1|mamba)|glm4"
)
"""Names of families all of whose layers keep every token, so that blocks times tokens of a block is the pool."""
_ORDINARY_BLOCKS: Final = frozenset({1, 8, 16, 32, 64, 128, 256})
_NO_LETTER: Final = re.compile(r"[^a-z0-9]")


def family_of_several_kinds(model_name: str, block_size: int | None) -> str | None:
    """Why blocks times tokens of a block is no capacity for this server, in words; ``None`` where nothing says so."""
    if block_size is not None and block_size not in _ORDINARY_BLOCKS:
        return f"blocks of {block_size} tokens are those of a model with states beside attention"
    plain = _NO_LETTER.sub("", model_name.lower())
    known = any(re.search(name, plain) for name in _NAMES)
    return f"the layers of {model_name} keep different things" if known else None


def is_of_one_kind(model_name: str) -> bool:
    """Whether the name is one of a family whose layers are all alike."""
    return bool(_ONE_KIND.search(_NO_LETTER.sub("", model_name.lower())))
