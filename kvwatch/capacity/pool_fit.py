"""How a pool whose model is not known shrinks with the length of requests: c(L) = blocks / (ceil(L / block) + fixed).

``fixed`` is what a request needs whatever its length: the states of layers without attention, the windows of others. Two figures of one
server give it: its blocks and its own "Maximum concurrency".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvwatch.model import EngineConfig


@dataclass(frozen=True, slots=True)
class PoolShape:
    """Blocks of an engine, tokens of a block of full attention, and the blocks each request needs besides."""

    blocks: int
    block_size: int
    fixed: int

    def sequences(self, tokens: float) -> int:
        """Requests of that many tokens that fit. Windows longer than that are counted in full: never too many."""
        return int(self.blocks // self.blocks_of(tokens))

    def blocks_of(self, tokens: float) -> int:
        """Blocks a request of that many tokens takes."""
        return -(-int(tokens) // self.block_size) + self.fixed

    def tokens_in(self, share: float) -> float:
        """Tokens of a request that holds that share of the blocks (0..1), less what it holds whatever its length."""
        return max(0.0, share * self.blocks - self.fixed) * self.block_size


def shape_of(config: EngineConfig, ranks: int) -> PoolShape | None:
    """From what vLLM since 0.24 says on its page; ``None`` where it does not, or where its figures do not go together so.

    *ranks* are the data-parallel ranks over which ``num_gpu_blocks`` is the sum.
    """
    if not (config.num_gpu_blocks and config.block_size and config.max_model_len and config.kv_cache_size_tokens):
        return None
    blocks, whole = config.num_gpu_blocks // ranks, config.kv_cache_size_tokens / config.block_size
    if blocks - 1 <= whole <= blocks:  # all of them but vLLM's null block, or that too: layers of one kind
        return PoolShape(int(whole), config.block_size, 0)
    return from_blocks(blocks, config.block_size, config.kv_cache_size_tokens / config.max_model_len, config.max_model_len)


_WHOLE: Final = 0.25
"""A count of blocks worked out from figures with two decimals is whole to about this much."""


def from_blocks(blocks: int, block_size: int, concurrency: float, length: int) -> PoolShape | None:
    """From the blocks an engine has and its concurrency at ``length`` tokens; ``None`` where they do not go together so."""
    fixed = blocks / concurrency - -(-length // block_size)
    return PoolShape(blocks, block_size, max(0, round(fixed))) if fixed > -_WHOLE else None


_MOST_GROUPS: Final = 16


def from_printed_tokens(tokens: int, block_size: int, concurrency: float, length: int) -> PoolShape | None:
    """From a log of vLLM before 0.21 on a model with states: its tokens line is ``blocks // groups x block``.

    All groups but one hold states, one block for a request each, or two with prefix caching. The number of groups that gives
    vLLM's own concurrency is the one; ``None`` where none or several do.
    """
    share, whole_blocks = tokens // block_size, -(-length // block_size)
    found = {
        PoolShape(groups * share + over, block_size, held * (groups - 1))
        for groups in range(2, _MOST_GROUPS + 1)
        for held in (1, 2)
        for over in range(groups)
        if abs((groups * share + over) / (whole_blocks + held * (groups - 1)) - concurrency) <= 0.005  # noqa: PLR2004 - two decimals
    }
    kinds = {(shape.fixed) for shape in found}
    return max(found, key=lambda shape: -shape.blocks) if len(kinds) == 1 else None
