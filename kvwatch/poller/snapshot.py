"""What was read of one engine becomes its `Snapshot`."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from kvwatch.model import EngineConfig, EngineId, Histogram, Snapshot
from kvwatch.poller import names
from kvwatch.poller.exposition import parse_value

Parts = dict[str, float]
"""Finite values by the family's own label (``le``, ``finished_reason``, …), by ``""`` where it has none."""
Draft = dict[str, Parts]
"""What was read of one engine, by sample name without prefix."""

MOST: Final = 1e15
"""No count, length or number of seconds is larger: beyond 9e15 a float no longer counts by one, and arithmetic with 1e308 overflows."""
_LEAST: Final = 1e-9
"""What is smaller and not zero is no count, length or number of seconds either: what is divided by 1e-308 is infinite."""
_MOST_FLOPS: Final = 1e30
"""A GPU of 1e16 FLOP/s for three million years."""
_FOUR_BYTES: Final = 2.0**32
_BELOW_ZERO: Final = -1e-6
"""Usage down to here is an arithmetic zero; further below, the gauge is broken (vllm-ascend #10048)."""
_WHERE: Final = {signal.name: (signal.samples, signal.part) for signal in names.SIGNALS}
_FAMILIES: Final = {signal.name: signal.families for signal in names.SIGNALS}
_NO_CONFIG: Final = EngineConfig()


_MIXED: Final = ("mamba_block_size", "mamba_page_size_padded", "sliding_window")
"""Labels that hold a number where a model has layers with states (vLLM 0.10.2 and later) or with a window."""


def build_snapshot(engine: EngineId, at: float, draft: Draft, config: EngineConfig = _NO_CONFIG) -> Snapshot:
    """One engine's numbers at `at`; what was absent, NaN, infinite or impossible is ``None``."""
    read: dict[str, Any] = {name: reader(draft, name) for name, reader in _READERS.items()}
    created = max((max(parts.values()) for sample in names.CREATED if (parts := draft.get(sample))), default=None)
    if created is not None and not is_measure(created):
        created = None
    return Snapshot(engine=engine, at=at, created=created, config=config, **read)


def read_config(labels: Mapping[str, str]) -> EngineConfig:
    """The labels of ``cache_config_info``; all are strings, ``"None"`` and ``"True"`` are how Python prints."""
    tokens = _positive(labels.get("kv_cache_size_tokens"))
    concurrency = _positive(labels.get("kv_cache_max_concurrency"))
    prefix_caching = labels.get("enable_prefix_caching")
    cache_dtype = labels.get("cache_dtype")
    return EngineConfig(
        kv_cache_size_tokens=_whole(tokens),
        num_gpu_blocks=_whole(_positive(labels.get("num_gpu_blocks"))),
        block_size=_whole(_positive(labels.get("block_size"))),
        max_model_len=_whole(_positive(str(tokens / concurrency))) if tokens and concurrency else None,
        cache_dtype=None if cache_dtype in (None, "", "None") else cache_dtype,
        gpu_memory_utilization=_positive(labels.get("gpu_memory_utilization")),
        enable_prefix_caching={"True": True, "False": False}.get(prefix_caching or ""),
        mixed_layers=any(_positive(labels.get(label)) for label in _MIXED),
    )


def _reading(draft: Draft, name: str) -> float | None:
    """The number of a signal from the first of its samples that carries one: the part asked for, or the sum of all parts."""
    samples, part = _WHERE[name]
    for sample in samples:
        parts = draft.get(sample)
        if parts:
            return sum(parts.values()) if part is None else parts.get(part)
    return None


def _number(draft: Draft, name: str, most: float = MOST) -> float | None:
    """A signal that counts something; what is below zero or beyond all measure is no count."""
    value = _reading(draft, name)
    return value if value is not None and is_measure(value, most) else None


def is_measure(value: float, most: float = MOST) -> bool:
    """Whether something can be counted or timed as that."""
    return value == 0 or _LEAST <= value <= most


def _usage(draft: Draft, name: str) -> float | None:
    """KV usage as a share; it is 0..1 in spite of its name ``_perc``."""
    value = _reading(draft, name)
    return None if value is None or value < _BELOW_ZERO else min(value, 1.0) if value >= _LEAST else 0.0


def _asleep(draft: Draft, name: str) -> bool | None:
    awake = _reading(draft, name)
    return None if awake is None else awake == 0


def _histogram(draft: Draft, name: str) -> Histogram | None:
    """The first family of this signal that is a whole histogram."""
    for family in _FAMILIES[name]:
        buckets = draft.get(family + "_bucket")
        layout = _layout(tuple(buckets)) if buckets else None
        if not buckets or layout is None:
            continue
        total = buckets.get(layout.infinity) if layout.infinity else _only(draft.get(family + "_count"))
        if total is None:
            continue
        counts = [*(buckets[edge] for edge in layout.edges), total]
        if all(map(is_measure, counts)):
            total_sum = _only(draft.get(family + "_sum"))
            return Histogram(layout.bounds, _packed(counts), total_sum if total_sum is not None and is_measure(abs(total_sum)) else None)
    return None


def _packed(counts: list[float]) -> array[int] | array[float]:
    """Counts in four bytes each while they are whole numbers that fit, in eight otherwise."""
    if max(counts) < _FOUR_BYTES and all(map(float.is_integer, counts)):
        return array("I", map(int, counts))
    return array("d", counts)


def _flops(draft: Draft, name: str) -> float | None:
    """0 means that nobody counts: --enable-mfu-metrics is off."""
    return _number(draft, name, _MOST_FLOPS) or None


def _only(parts: Parts | None) -> float | None:
    return parts.get("") if parts else None


class _Layout(NamedTuple):
    """How the ``le`` texts of a histogram are to be read."""

    bounds: tuple[float, ...]
    edges: tuple[str, ...]
    """The texts of `bounds`."""
    infinity: str | None


@lru_cache(maxsize=256)
def _layout(edges: tuple[str, ...]) -> _Layout | None:
    """Edges sorted; ``None`` when one of them is no number. One object for all snapshots: the bounds are most of a histogram's memory."""
    try:
        numbers = {edge: parse_value(edge) for edge in edges}
    except ValueError:
        return None
    finite = sorted((edge for edge in edges if math.isfinite(numbers[edge])), key=numbers.__getitem__)
    if any(abs(numbers[edge]) > MOST for edge in finite):
        return None
    infinity = next((edge for edge in edges if numbers[edge] == math.inf), None)
    return _Layout(tuple(numbers[edge] for edge in finite), tuple(finite), infinity)


def _positive(text: str | None) -> float | None:
    """A number above zero, ``None`` for everything else that a label may say."""
    try:
        value = parse_value(text or "")
    except ValueError:
        return None
    return value if value > 0 and is_measure(value) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


_READERS: Final[dict[str, Callable[[Draft, str], Any]]] = {
    **{signal.name: _histogram if signal.kind is names.Kind.HISTOGRAM else _number for signal in names.SIGNALS},
    "kv_usage": _usage,
    "asleep": _asleep,
    "flops": _flops,
}
