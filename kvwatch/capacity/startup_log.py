"""What a vLLM startup log knows of the KV cache, in every form vLLM 0.2 to 0.33 has written it.

Pure: lines in, facts out. When a log holds several starts, the last one counts; a value its start did not print is ``None``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kvwatch.config.policy import KnownConfig

GIB: Final = 2**30
_V0_BLOCK_SIZE: Final = 16
"""vLLM's default on a GPU in the versions that logged blocks and no tokens."""
_BLOCK_SIZES: Final = (1, 8, 16, 32, 64, 128, 256)

_START: Final = re.compile(r"(?:API server version|█ +version) (?P<version>\d[\w.+]*)")
"""A server names its version before everything else."""
_ENGINE: Final = re.compile(r"LLM engine \(v(?P<version>\d[\w.+]*)\)")
_TOKENS: Final = re.compile(r"[A-Z]+(?: \+ host)? KV cache size: (?P<tokens>[\d,]+) tokens")
_CONCURRENCY: Final = re.compile(r"Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<times>[\d.]+)x")
_BLOCKS: Final = re.compile(r"# [A-Za-z]+ blocks: (?P<blocks>\d+)")
_AVAILABLE: Final = re.compile(r"Available KV cache memory: (?P<gib>[\d.]+) G")
_WEIGHTS: Final = re.compile(r"(?:Model loading|Loading model weights) took (?P<gib>[\d.]+) G")
_AUTO_FIT: Final = re.compile(r"Auto-fit max_model_len: reduced from [\d,]+ to (?P<length>[\d,]+)")
_MODEL_LEN: Final = re.compile(r"max_seq_len=(?P<length>\d+)")
_KV_DTYPE: Final = re.compile(r"\bkv_cache_dtype=['\"]?(?P<dtype>\w+)")
_FLAG: Final = r"""['"]?\b{name}['"]?[=:] ?(?P<n>\d+)"""
_FLAGS: Final = {name: re.compile(_FLAG.format(name=name)) for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")}
_NO_MEMORY: Final = re.compile(r"No available memory for the cache blocks")
_TOO_LONG: Final = re.compile(
    r"To serve at least one request with the model'?s'?s? max seq len \((?P<length>\d+)\)"
    r"|The model's max seq len \((?P<v0>\d+)\) is larger than the maximum number of tokens"
)
_ESTIMATE: Final = re.compile(r"the estimated maximum model length is (?P<length>[\d,]+)")


@dataclass(frozen=True, slots=True)
class StartupLog:
    """The facts of the last start in a log."""

    vllm_version: str | None = None
    kv_cache_tokens: int | None = None
    """Pool of one engine in tokens."""
    max_model_len: int | None = None
    max_concurrency: float | None = None
    """vLLM's own "Maximum concurrency": how many sequences of `max_model_len` fit."""
    blocks: int | None = None
    block_size: int | None = None
    kv_cache_dtype: str | None = None
    kv_memory: int | None = None
    """Bytes of one GPU left for KV; printed with two decimals of a GiB."""
    weights: int | None = None
    """Bytes of weights on one GPU."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    failure: str | None = None
    """Why the server did not start, when it says so."""
    estimated_max_model_len: int | None = None
    """vLLM's own estimate in that message."""

    @property
    def known(self) -> KnownConfig:
        """The same in the words of the operator's configuration."""
        return KnownConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            kv_cache_tokens=self.kv_cache_tokens,
            vllm_version=self.vllm_version,
        )


def read_startup_log(lines: Iterable[str]) -> StartupLog:
    """The facts of the last start found in ``lines``; raises `ValueError` when they are no vLLM startup log at all."""
    seen = StartupLog()
    for line in lines:
        seen = _with_pool(_with_server(seen, line), line)
    seen = _pool_from_blocks(seen)
    if seen.kv_cache_tokens is None and seen.failure is None:
        raise ValueError("no KV cache size in this log: is it the startup log of a vLLM server, from its first line?")
    return seen


def _with_server(seen: StartupLog, line: str) -> StartupLog:
    """What the line says of version, arguments and length."""
    if found := _START.search(line):
        seen = StartupLog(vllm_version=found["version"])
    if (found := _ENGINE.search(line)) and seen.vllm_version is None:
        seen = replace(seen, vllm_version=found["version"])
    if found := _MODEL_LEN.search(line):
        seen = replace(seen, max_model_len=int(found["length"]))
    if found := _KV_DTYPE.search(line):
        seen = replace(seen, kv_cache_dtype=found["dtype"])
    if found := _AUTO_FIT.search(line):
        seen = replace(seen, max_model_len=_int(found["length"]))
    if "args" in line:
        given = {name: int(found["n"]) for name, pattern in _FLAGS.items() if (found := pattern.search(line))}
        seen = replace(
            seen,
            max_num_seqs=given.get("max_num_seqs", seen.max_num_seqs),
            max_num_batched_tokens=given.get("max_num_batched_tokens", seen.max_num_batched_tokens),
            block_size=given.get("block_size", seen.block_size),
        )
    return seen


def _with_pool(seen: StartupLog, line: str) -> StartupLog:
    """What the line says of memory, blocks and tokens."""
    if found := _WEIGHTS.search(line):
        seen = replace(seen, weights=round(float(found["gib"]) * GIB))
    if found := _AVAILABLE.search(line):
        seen = replace(seen, kv_memory=round(float(found["gib"]) * GIB))
    if found := _BLOCKS.search(line):
        seen = replace(seen, blocks=int(found["blocks"]))
    if found := _TOKENS.search(line):
        seen = replace(seen, kv_cache_tokens=_int(found["tokens"]))
    if found := _CONCURRENCY.search(line):
        seen = replace(seen, max_model_len=_int(found["length"]), max_concurrency=float(found["times"]))
    if _NO_MEMORY.search(line):
        seen = replace(seen, failure="no memory was left for KV blocks")
    if found := _TOO_LONG.search(line):
        length = int(found["length"] or found["v0"])
        seen = replace(seen, failure=f"not even one request of {length} tokens fits the KV cache", max_model_len=length)
    if found := _ESTIMATE.search(line):
        seen = replace(seen, estimated_max_model_len=_int(found["length"]))
    return seen


def _pool_from_blocks(seen: StartupLog) -> StartupLog:
    """The forms that print blocks and no tokens: V0 and the first V1 releases, which had no null block to subtract."""
    if seen.kv_cache_tokens is not None or not seen.blocks:
        return seen
    size = seen.block_size or _V0_BLOCK_SIZE
    if seen.max_concurrency and seen.max_model_len:
        exact = seen.max_concurrency * seen.max_model_len / seen.blocks
        size = min(_BLOCK_SIZES, key=lambda candidate: abs(candidate - exact))
    return replace(seen, kv_cache_tokens=seen.blocks * size, block_size=size)


def _int(text: str) -> int:
    return int(text.replace(",", ""))
