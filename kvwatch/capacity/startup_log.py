"""What a vLLM startup log knows of the KV cache, in every form vLLM 0.2 to 0.34 has written it.

Pure: lines in, facts out. When a log holds several starts, the last one counts; a value its start did not print is ``None``.
Where several workers print a pool of their own (before 0.11.1), or several data-parallel engines, the smallest counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from kvwatch.capacity.log_lines import unwrapped
from kvwatch.capacity.pool_line import PoolLine, count, read_pool
from kvwatch.capacity.startup_failure import StartupFailure, read_error, read_failure
from kvwatch.capacity.versions import Version, parse_version
from kvwatch.config.policy import KnownConfig

GIB: Final = 2**30
_CORRECTS_ITSELF: Final = (0, 34)
"""Since then an engine prints its pool again after warm-up, and the last counts; to 0.11.0 it printed one for each worker."""

_PROCESS: Final = re.compile(r"\((?P<name>[A-Za-z_]\w*(?: rank=\d+)?) pid=(?P<pid>\d+)(?:, ip=[\d.]+)?\)")
_START: Final = re.compile(r"(?:API server version|vLLM version|█ +version) v?(?P<version>\d[\w.+]*)")
"""A server names its version before everything else."""
_ENGINE: Final = re.compile(r"LLM engine(?: \(v(?P<version>\d[\w.+]*)\))? with config")
_SERVING: Final = re.compile(r"Application startup complete|Uvicorn running on|Starting vLLM API server|Started server process")
_OVERRIDE: Final = re.compile(r"Overriding num_gpu_blocks=\d+ with num_gpu_blocks_override=(?P<blocks>\d+)")
_AVAILABLE: Final = re.compile(r"(?:Available KV cache memory: |reserved for KV Cache is |kv_cache_size=)(?P<gib>-?[\d.]+) ?G")
_WEIGHTS: Final = re.compile(r"(?:Model loading took |Loading model weights took |model weights take )(?P<gib>[\d.]+) ?G")
_AUTO_FIT: Final = re.compile(
    r"(?:Auto-fit max_model_len: reduced|max-model-len auto reduced max_model_len) from [\d,]+ to (?P<length>[\d,]+)"
)
_STATE_BLOCK: Final = re.compile(r"Setting (?:attention|kv cache) block size to (?P<block>\d+)")
_DRAFTS: Final = re.compile(r"num_spec(?:ulative)?_tokens['\"]?[=:] ?(?P<n>\d+)")
_KV_DTYPE: Final = re.compile(r"\bkv_cache_dtype['\"]?[=:] ?['\"]?(?P<dtype>\w+)")
_PREFIX: Final = re.compile(r"\benable_prefix_caching['\"]?[=:] ?(?P<on>True|False)")
_NO_HYBRID: Final = re.compile(r"Hybrid KV cache manager is disabled for this|disable_hybrid_kv_cache_manager['\"]?[=:] ?True")
_STAGE: Final = re.compile(r"Worker(?:_DP\d+)?_PP(?P<stage>\d+)")
_RANK: Final = re.compile(r"Worker(?:_\w+?)?_TP(?P<rank>\d+)")
_NUMBERS: Final = {
    "max_model_len": r"(?:max_seq_len|max_model_len)",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
}
_FLAGS: Final = {name: re.compile(rf"""['"]?\b{key}['"]?[=:] ?(?P<n>\d+)""") for name, key in _NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class StartupLog:
    """The facts of the last start in a log."""

    vllm_version: str | None = None
    kv_cache_tokens: int | None = None
    """Pool of one engine in tokens at full length: vLLM's own concurrency times the length where its tokens line is no capacity."""
    printed_tokens: int | None = None
    """What the tokens line said, where that is another number."""
    max_model_len: int | None = None
    max_concurrency: float | None = None
    """vLLM's own "Maximum concurrency": how many sequences of `max_model_len` fit."""
    blocks: int | None = None
    block_size: int | None = None
    kv_cache_dtype: str | None = None
    kv_memory: int | None = None
    """Bytes of one GPU left for KV, the least of all workers; printed with two decimals of a GiB."""
    weights: int | None = None
    """Bytes of weights on one GPU."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    drafts: int | None = None
    """Speculative tokens of a step."""
    prefix_caching: bool | None = None
    hybrid_manager: bool = True
    device: str | None = None
    """What the pool line calls it: GPU, CPU."""
    form: Version | None = None
    """The last release that prints the pool in the form it is printed in here: blocks, two lines, one line."""
    failure: str | None = None
    """Why the server did not start, when it says so."""
    remedy: str | None = None
    """What would have started."""
    estimated_max_model_len: int | None = None
    """The longest length that starts, in that case."""

    @property
    def version(self) -> Version | None:
        """As it says it, else the newest that still writes its pool in that form; ``None`` where no form tells."""
        said = parse_version(self.vllm_version)
        if said is not None or self.form is None:
            return said
        return (0, 20) if self.printed_tokens is not None else self.form

    @property
    def known(self) -> KnownConfig:
        """The same in the words of the operator's configuration."""
        return KnownConfig(**{name: getattr(self, name) for name in KnownConfig.model_fields})


@dataclass(slots=True)
class _Start:
    """One start as it is read."""

    facts: StartupLog = field(default_factory=StartupLog)
    pools: list[PoolLine] = field(default_factory=list)
    failure: StartupFailure | None = None
    failed_by: str = ""
    error: StartupFailure | None = None
    """The first exception, of whatever kind: the cause where no wording is known."""
    serving: bool = False


def read_startup_log(lines: Iterable[str]) -> StartupLog:
    """The facts of the last start found in ``lines``; raises `ValueError` when they are no vLLM startup log at all."""
    start = _Start()
    for raw in lines:
        line, _ = unwrapped(raw)
        process = found["name"] + found["pid"] if (found := _PROCESS.search(line)) else ""
        if _begins_anew(line, process, start):
            start = _Start()
        _read(line, process, start)
    if start.error is not None and not start.serving:
        unexplained = start.failure is not None and start.failure.remedy is None and start.failure.max_model_len is None
        if unexplained or (start.failure is None and not start.pools and start.facts.vllm_version is not None):
            start.failure = start.error
    if not start.pools and start.failure is None:
        raise ValueError("no KV cache size in this log: is it the startup log of a vLLM server, from its first line?")
    return _finished(start)


def _begins_anew(line: str, process: str, start: _Start) -> bool:
    if _START.search(line):
        return True
    mine = any(pool.process == process for pool in start.pools) or (start.failure is not None and start.failed_by == process)
    return mine and bool(_ENGINE.search(line))


def _read(line: str, process: str, start: _Start) -> None:
    start.facts = _with_memory(_with_server(start.facts, line), line)
    if _SERVING.search(line) and start.pools:
        start.serving = True
    if read_pool(line, process, start.pools):
        start.failure = None
    failure = read_failure(line)
    if failure is None:
        start.error = start.error or read_error(line)
    if failure is None or (failure.only_while_starting and (start.serving or start.failure is not None)):
        return
    start.failure, start.failed_by = failure, process


def _with_server(seen: StartupLog, line: str) -> StartupLog:
    """What the line says of version, arguments and length."""
    if found := _START.search(line):
        seen = replace(seen, vllm_version=found["version"])
    engine = _ENGINE.search(line)
    if engine and engine["version"] and seen.vllm_version is None:
        seen = replace(seen, vllm_version=engine["version"])
    if found := _AUTO_FIT.search(line):
        seen = replace(seen, max_model_len=count(found["length"]))
    if found := _STATE_BLOCK.search(line):
        seen = replace(seen, block_size=int(found["block"]))
    if _NO_HYBRID.search(line):
        seen = replace(seen, hybrid_manager=False)
    if found := _STAGE.search(line):
        seen = replace(seen, pipeline_parallel_size=max(seen.pipeline_parallel_size or 1, int(found["stage"]) + 1))
    if found := _RANK.search(line):
        seen = replace(seen, tensor_parallel_size=max(seen.tensor_parallel_size or 1, int(found["rank"]) + 1))
    return _with_arguments(seen, line) if engine or "args" in line else seen


def _with_arguments(seen: StartupLog, line: str) -> StartupLog:
    """What the line that repeats the arguments, or the engine's configuration, says."""
    given: dict[str, int] = {name: int(found["n"]) for name, pattern in _FLAGS.items() if (found := pattern.search(line))}
    seen = replace(seen, **given)  # type: ignore[arg-type]
    if found := _KV_DTYPE.search(line):
        seen = replace(seen, kv_cache_dtype=found["dtype"])
    if found := _PREFIX.search(line):
        seen = replace(seen, prefix_caching=found["on"] == "True")
    if found := _DRAFTS.search(line):
        seen = replace(seen, drafts=int(found["n"]))
    return seen


def _with_memory(seen: StartupLog, line: str) -> StartupLog:
    if found := _WEIGHTS.search(line):
        seen = replace(seen, weights=max(seen.weights or 0, round(float(found["gib"]) * GIB)))
    if (found := _AVAILABLE.search(line)) and float(found["gib"]) > 0:
        memory = round(float(found["gib"]) * GIB)
        seen = replace(seen, kv_memory=memory if seen.kv_memory is None else min(memory, seen.kv_memory))
    if found := _OVERRIDE.search(line):
        seen = replace(seen, blocks=int(found["blocks"]))
    return seen


def _finished(start: _Start) -> StartupLog:
    seen = start.facts
    if start.failure is not None:
        seen = replace(
            seen,
            failure=start.failure.reason,
            remedy=start.failure.remedy,
            estimated_max_model_len=start.failure.estimated_max_model_len,
            max_model_len=start.failure.max_model_len or seen.max_model_len,
        )
    if not start.pools:
        return seen
    pools = start.pools
    if (parse_version(seen.vllm_version) or (0,)) >= _CORRECTS_ITSELF:
        pools = list({pool.process: pool for pool in pools}.values())
    pool = min(pools, key=lambda one: one.capacity)
    length = pool.max_model_len or seen.max_model_len
    device = pool.process.partition("|")[2] or None
    seen = replace(seen, max_model_len=length, max_concurrency=pool.max_concurrency, device=device, form=pool.form)
    if pool.blocks:
        size = pool.v0_block_size(seen.block_size)
        return replace(seen, blocks=pool.blocks, kv_cache_tokens=pool.blocks * size, block_size=size)
    if pool.max_concurrency and pool.max_model_len and (pool.tokens is None or pool.several_kinds):
        return replace(seen, kv_cache_tokens=round(pool.max_concurrency * pool.max_model_len), printed_tokens=pool.tokens)
    return replace(seen, kv_cache_tokens=pool.tokens)
