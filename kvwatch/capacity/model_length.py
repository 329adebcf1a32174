"""The longest sequence a model is served with where nobody sets ``--max-model-len``. Read from ``config.json``.

vLLM 0.32 ``config/model.py`` (_get_and_verify_max_len) and ``transformers_utils/model_arch_config_convertor.py``
(derive_max_model_len_and_key); 0.28 for what YaRN was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kvwatch.capacity.fields import Config, model_type, text_config, whole
from kvwatch.capacity.versions import Version

_LENGTHS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_NOT_MULTIPLIED: Final = frozenset({"su", "longrope", "llama3", "default"})
_YARN: Final = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Multiplied to 0.28; since 0.30 the config's length counts as already scaled."""


def longest(config: Config, version: Version) -> int | None:
    """Tokens; ``None`` where the config gives no limit. ``config``: as `kvwatch.capacity.architecture.complete` makes it."""
    text = text_config(config)
    found = [length for key in _LENGTHS if (length := whole(text, key))]
    derived = whole(text, "model_max_length") or (min(found) if found else None)
    if derived is None:
        return None
    scalings = list(_scalings(config, text))
    kinds = [str(scaling.get("rope_type") or scaling.get("type") or "default") for scaling in scalings]
    original = whole(config, "original_max_position_embeddings") or whole(text, "original_max_position_embeddings")
    if original and any(kind == "longrope" for kind in kinds) and version >= (0, 12):
        return original
    if "gemma3" in model_type(config):
        return derived
    factor = 1.0
    for scaling, kind in zip(scalings, kinds, strict=True):
        given = scaling.get("factor")
        if kind in _NOT_MULTIPLIED or (kind in _YARN and version >= (0, 30)) or not isinstance(given, int | float):
            continue
        factor = float(given)
        if kind == "yarn" and (before := scaling.get("original_max_position_embeddings")) and isinstance(before, int):
            derived = before
    return int(derived * factor)


def _scalings(config: Config, text: Config) -> Iterator[Mapping[str, object]]:
    """Each description of how positions are scaled: for all layers, or by kind of layer."""
    for place in (text,) if text is config else (text, config):
        for key in ("rope_scaling", "rope_parameters"):
            given = place.get(key)
            if isinstance(given, Mapping):
                nested = [inner for inner in given.values() if isinstance(inner, Mapping)]
                yield from nested or [given]
