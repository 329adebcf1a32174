"""vLLM's block pool: fixed-size KV blocks, a free queue in preemption order, and what the free ones still remember.

Source: vLLM 0.32 ``v1/core/block_pool.py``, reduced to one KV group and full attention.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class BlockPool:
    """KV blocks numbered from 1 (0 is vLLM's null block, never handed out).

    With prefix caching a freed block keeps its content until it is handed out again, so it may be taken back by `lookup` and `take`.
    """

    def __init__(self, num_gpu_blocks: int, *, caching: bool) -> None:
        self.capacity = num_gpu_blocks - 1
        self._caching = caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self._references = [0] * num_gpu_blocks
        self._key_of: dict[int, Hashable] = {}
        self._block_of: dict[Hashable, int] = {}

    @property
    def free(self) -> int:
        """Blocks nobody holds, remembered content or not."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the pool that is held: 0..1."""
        return 1.0 - len(self._free) / self.capacity

    def allocate(self, count: int) -> list[int]:
        """Hand out the `count` free blocks that were freed longest ago; the caller has checked `free`."""
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            if self._caching:
                key = self._key_of.pop(block, None)
                if key is not None:
                    del self._block_of[key]
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give blocks back, the last one first, so that the tail of a sequence is preempted before its beginning."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None

    def publish(self, blocks: Sequence[int], keys: Iterable[Hashable]) -> None:
        """Remember what full blocks hold; a content already known keeps its first block."""
        if self._caching:
            for block, key in zip(blocks, keys, strict=True):
                if key not in self._block_of and block not in self._key_of:
                    self._block_of[key] = block
                    self._key_of[block] = key

    def lookup(self, keys: Iterable[Hashable]) -> list[int]:
        """The blocks of the longest known prefix of `keys`."""
        found = []
        if self._caching:
            for key in keys:
                block = self._block_of.get(key)
                if block is None:
                    break
                found.append(block)
        return found

    def unreferenced(self, blocks: Sequence[int]) -> int:
        """How many of these blocks are free: taking them back uses up that many."""
        return sum(1 for block in blocks if not self._references[block])

    def take(self, blocks: Sequence[int]) -> None:
        """Hold blocks found by `lookup` once more."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1
