"""KV groups as vLLM makes them: layers with the same cache share a table of numbered blocks, all groups draw from one pool.

Formulas: vLLM 0.32 ``v1/core/kv_cache_utils.py`` (get_kv_cache_groups and what it calls) and ``v1/kv_cache_interface.py`` (the specs);
what changed between releases is asked for by version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from kvwatch.capacity.versions import Version

_WIDEN_UNDER: Final[tuple[tuple[Version, float], ...]] = (((0, 18), 1.5), ((0, 12), 1.25))
"""Since when the largest kind sets the group size if it has fewer layers than the smallest kind times this."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The cache of one layer on one GPU: one page is one block of one layer."""

    kind: Literal["full", "window", "chunk", "state"]
    page: int
    """Bytes of a page."""
    block: int
    """Tokens of a block; of a state: no meaning."""
    keeps: int | None = None
    """Tokens of the window or chunk."""

    def blocks(self, length: int, in_flight: int, state_blocks: int) -> int:
        """Blocks a request of ``length`` tokens needs at most, with ``in_flight`` tokens scheduled but not settled.

        ``v1/kv_cache_interface.py``: FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, MambaSpec. max_memory_usage_bytes.
        """
        if self.kind == "state":
            return state_blocks
        if self.kind == "window" and self.keeps is not None:
            # The token being computed is one of the window where nobody says how many are in flight.
            seen = self.keeps - 1 + max(in_flight, 1)
            return -(-min(seen, length) // self.block) + 1
        if self.kind == "chunk" and self.keeps is not None:
            return -(-min(self.keeps + in_flight, length) // self.block)
        return -(-length // self.block)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a table of blocks."""

    spec: Spec
    layers: tuple[int, ...]
    """Indices into the caches of the model."""
    pages: tuple[int, ...]
    """Bytes of the page of each of them."""


def make_groups(specs: Sequence[Spec], version: Version, *, hybrid: bool = True) -> list[Group]:
    """The groups of these caches. ``hybrid``: the hybrid manager is on; without it windows and chunks count as full attention.

    Raises `ValueError` where that vLLM refuses to mix them.
    """
    if not hybrid and any(spec.kind == "full" for spec in specs):
        specs = [replace(spec, kind="full", keeps=None) if spec.kind in ("window", "chunk") else spec for spec in specs]
    if len({(spec.kind, spec.keeps, spec.block if spec.kind != "state" else 0) for spec in specs}) == 1:
        # One kind: one group, whatever the pages (UniformTypeKVCacheSpecs, 0.11).
        return [Group(specs[0], tuple(range(len(specs))), tuple(spec.page for spec in specs))]
    return _split(_same_page(specs, version), version)


def _same_page(specs: Sequence[Spec], version: Version) -> list[Spec]:
    """Every page as large as the largest: by more tokens in a block where that divides, else by padding (unify_kv_cache_spec_page_size)."""
    largest = max(spec.page for spec in specs)
    found = []
    for spec in specs:
        if spec.page == largest:
            found.append(spec)
            continue
        if version < (0, 12) and spec.kind != "state":
            raise ValueError("layers of different page size: vLLM before 0.12 refuses to start such a model")
        divides = spec.kind != "state" and largest % spec.page == 0
        found.append(replace(spec, page=largest, block=spec.block * (largest // spec.page)) if divides else replace(spec, page=largest))
    return found


def _split(specs: Sequence[Spec], version: Version) -> list[Group]:
    """Groups of as many layers as the rarest kind has (_get_kv_cache_groups_uniform_page_size)."""
    kinds: dict[Spec, list[int]] = {}
    for index, spec in enumerate(specs):
        kinds.setdefault(spec, []).append(index)
    fewest, most = min(map(len, kinds.values())), max(map(len, kinds.values()))
    factor = next((times for since, times in _WIDEN_UNDER if version >= since), 0.0)
    size = most if most < fewest * factor else fewest
    groups = []
    for spec, layers in kinds.items():
        number = -(-len(layers) // size)
        for i in range(number):
            # Dealt out in turn, so that each pipeline stage has its share of every group; the last may be short of a layer (padding).
            mine = layers[i::number] if version >= (0, 9) else layers[i * size : (i + 1) * size]
            groups.append(Group(spec, tuple(mine), (spec.page,) * len(mine)))
    return groups
