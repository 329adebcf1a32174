"""The lines of a startup log that say how large a pool is, in the forms of vLLM 0.2 to 0.34. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from kvwatch.capacity.versions import Version

_V0_BLOCK_SIZE: Final = 16
"""vLLM's default on a GPU in the versions that logged blocks and no tokens."""
_BLOCK_SIZES: Final = (1, 8, 16, 32, 64, 128, 256)
_BLOCKS_ONLY: Final = (0, 7)
_TWO_LINES: Final = (0, 27)
_ONE_LINE: Final = (0, 33)
_SAME: Final = 0.01
"""Tokens over length and vLLM's own concurrency are the same figure up to this share: blocks are whole and two decimals are printed."""
_TOKENS: Final = re.compile(r"[A-Za-z]+(?: \+ host)? KV cache size: (?P<tokens>[\d,]+) tokens")
_CONCURRENCY: Final = re.compile(r"Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<times>[\d.,]+)x")
_BLOCKS: Final = re.compile(r"# [A-Za-z]+ blocks: (?P<blocks>[\d,]+)")
_DEVICE: Final = re.compile(r"\b(?P<device>[A-Z]+)(?: \+ host)? KV cache size:")


@dataclass(frozen=True, slots=True)
class PoolLine:
    """One pool as one process printed it."""

    process: str
    tokens: int | None = None
    blocks: int | None = None
    max_model_len: int | None = None
    max_concurrency: float | None = None
    form: Version | None = None

    @property
    def several_kinds(self) -> bool:
        """The tokens are no capacity: several groups of layers share the blocks, and vLLM before 0.21 gave each an equal share."""
        if self.tokens is None or self.max_model_len is None or self.max_concurrency is None:
            return False
        return abs(self.tokens / self.max_model_len - self.max_concurrency) > max(0.006, _SAME * self.max_concurrency)

    @property
    def capacity(self) -> float:
        """To find the smallest: requests of full length, else tokens, else blocks."""
        return self.max_concurrency or self.tokens or self.blocks or 0

    def v0_block_size(self, said: int | None) -> int:
        """Of the forms that print blocks and no tokens: V0 and the first V1 releases, which had no null block to subtract."""
        if self.blocks and self.max_concurrency and self.max_model_len:
            exact = self.max_concurrency * self.max_model_len / self.blocks
            return min(_BLOCK_SIZES, key=lambda candidate: abs(candidate - exact))
        return said or _V0_BLOCK_SIZE


def read_pool(line: str, process: str, pools: list[PoolLine]) -> bool:
    """Add what the line says of a pool; whether it said anything."""
    device = _DEVICE.search(line)
    name = f"{process}|{device['device']}" if device else process
    if found := _TOKENS.search(line):
        pools.append(PoolLine(name, tokens=count(found["tokens"]), form=_ONE_LINE if _CONCURRENCY.search(line) else _TWO_LINES))
    elif found := _BLOCKS.search(line):
        pools.append(PoolLine(name, blocks=count(found["blocks"]), form=_BLOCKS_ONLY))
    concurrency = _CONCURRENCY.search(line)
    if concurrency:
        said = {"max_model_len": count(concurrency["length"]), "max_concurrency": float(concurrency["times"].replace(",", ""))}
        mine = [i for i, pool in enumerate(pools) if pool.max_concurrency is None and pool.process.split("|")[0] == process]
        if mine:  # other processes may have written in between
            pools[mine[-1]] = replace(pools[mine[-1]], **said)  # type: ignore[arg-type]
        else:
            pools.append(PoolLine(process, **said))  # type: ignore[arg-type]
    return bool(found or concurrency)


def count(text: str) -> int:
    """A whole number as a log writes it, thousands apart by commas."""
    return int(text.replace(",", ""))
