"""How wide an element of the KV cache is, and what ``--kv-cache-dtype auto`` becomes with a checkpoint. Read from ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvwatch.capacity.fields import Config
from kvwatch.capacity.versions import Version

_ELEMENT_BYTES: Final = {
    "float16": 2,
    "fp16": 2,
    "half": 2,
    "bfloat16": 2,
    "bf16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
DS_MLA: Final = "fp8_ds_mla"
NVFP4: Final = "nvfp4"
KV_DTYPES: Final = ("auto", *_ELEMENT_BYTES, NVFP4, DS_MLA)
"""What ``--kv-cache-dtype`` may be here."""
SIXTEEN_BITS: Final = frozenset({"auto", *(name for name, size in _ELEMENT_BYTES.items() if size == 2)})  # noqa: PLR2004 - bytes

_OWN_SINCE: Final[dict[str, Version]] = {"modelopt": (0, 14), "compressed-tensors": (0, 15)}
"""The first vLLM that lets ``auto`` follow the checkpoint (``utils/torch_utils.py`` 0.14, attention layer 0.15)."""
_FROM_MODELOPT: Final = {"fp8": "fp8_e4m3", "nvfp4": NVFP4}
_FP8_BITS: Final = 8
_FP4_BITS: Final = 4


def vector_bytes(dim: int, kv_dtype: str) -> int:
    """Bytes of one key or value of that many elements; raises `ValueError` for a dtype that cannot be counted here.

    nvfp4 packs two elements in a byte and adds an 8-bit scale for each 16 (vLLM 0.32 ``utils/torch_utils.py``, nvfp4_kv_cache_full_dim).
    """
    if kv_dtype == NVFP4:
        return dim // 2 + dim // 16
    if kv_dtype == "auto":
        return 2 * dim
    if kv_dtype not in _ELEMENT_BYTES:
        raise ValueError(f"KV cache dtype {kv_dtype!r} is not one kvwatch can count: {', '.join(KV_DTYPES)}")
    return dim * _ELEMENT_BYTES[kv_dtype]


def checkpoint_kv_dtype(config: Config, text: Config) -> tuple[str, Version] | None:
    """What the checkpoint wants of its KV cache and the first vLLM that follows it; ``None`` where it wants nothing (known to vLLM)."""
    found = config.get("quantization_config") or text.get("quantization_config") or config.get("compression_config")
    if not isinstance(found, Mapping):
        return None
    method = str(found.get("quant_method") or found.get("quant_algo") or "").lower()
    inner = found.get("quantization")
    inner = inner if isinstance(inner, Mapping) else {}
    scheme = found.get("kv_cache_scheme") or inner.get("kv_cache_scheme")
    if method == "compressed-tensors":
        return ("fp8", _OWN_SINCE["compressed-tensors"]) if isinstance(scheme, Mapping) and _bits(scheme) == _FP8_BITS else None
    algorithm = scheme or inner.get("kv_cache_quant_algo") or found.get("kv_cache_quant_algo")
    wanted = _modelopt_dtype(algorithm)
    return None if wanted is None else (wanted, _OWN_SINCE["modelopt"])


def _modelopt_dtype(algorithm: object) -> str | None:
    if isinstance(algorithm, Mapping):
        if algorithm.get("type", "float") != "float":
            return None
        return {_FP8_BITS: "fp8_e4m3", _FP4_BITS: NVFP4}.get(_bits(algorithm) or 0)
    return _FROM_MODELOPT.get(str(algorithm or "").lower())


def _bits(scheme: Mapping[str, object]) -> int | None:
    bits = scheme.get("num_bits")
    return bits if isinstance(bits, int) else None
