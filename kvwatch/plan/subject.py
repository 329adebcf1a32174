"""What is planned for: a model as it would be served, or the pool that is served now, from the facts given. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvwatch.capacity.architecture import read_model
from kvwatch.capacity.cache import KvCache, ServerSetup, kv_cache
from kvwatch.capacity.class_defaults import Defaults, complete
from kvwatch.capacity.model import Attention, Latent, Model
from kvwatch.capacity.model_length import longest
from kvwatch.capacity.pool_fit import from_printed_tokens
from kvwatch.capacity.startup_log import GIB, StartupLog
from kvwatch.capacity.versions import NEWEST, Version, parse_version
from kvwatch.capacity.weights import weight_bytes
from kvwatch.errors import UsageError
from kvwatch.plan.options import ACTIVATIONS, OTHER, UTILIZATION, Pool, Serving, quantised
from kvwatch.plan.sources import Live

_BUDGETS: Final = (2048, 8192, 16384, 4096, 1024, 512, 32768)
"""``--max-num-batched-tokens`` in the order they are tried where a log gives a concurrency and not the flag: vLLM's defaults first."""
_AGREES: Final = 0.02
"""Share by which figures of one server may differ: memory and concurrency are printed with two decimals."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says; ``None`` is not said."""

    version: str | None = None
    gpus: int | None = None
    stages: int | None = None
    kv_dtype: str | None = None
    block_size: int | None = None
    batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_memory: int | None = None
    utilization: float = UTILIZATION
    weights: int | None = None
    activations: int = ACTIVATIONS
    other: int = OTHER
    kv_memory: int | None = None


def refuse_failed_start(given: Given, log: StartupLog | None, *, config: bool) -> None:
    """Raises `UsageError` when the log's server did not start, with what would, unless another length is asked of a config."""
    if log is None or log.failure is None:
        return
    other_length = given.max_model_len is not None and given.max_model_len != log.max_model_len
    if config and other_length and (log.kv_memory is not None or given.kv_memory is not None or given.gpu_memory is not None):
        return
    hint = f"; {log.remedy}" if log.remedy else ""
    raise UsageError(f"the server of this log did not start: {log.failure}{hint}")


def pool_of(given: Given, log: StartupLog | None, live: Live | None) -> Pool:
    """The pool that is served now; the live server's word goes before the log's."""
    if live is not None and live.unsure is not None:
        raise UsageError(
            f"{live.unsure}, and its page shows only blocks ({live.blocks} of {live.config.block_size} tokens): "
            "give its config.json (--config FILE) or its startup log (--log FILE) too"
        )
    if live is not None and (live.config.kv_cache_size_tokens or log is None or log.kv_cache_tokens is None):
        return _at_length(live.pool, given.max_model_len or live.pool.max_model_len)
    if log is None or log.kv_cache_tokens is None:
        raise UsageError("the log says nothing of a KV cache")
    shape = None
    if log.printed_tokens and log.block_size and log.max_concurrency and log.max_model_len:
        shape = from_printed_tokens(log.printed_tokens, log.block_size, log.max_concurrency, log.max_model_len)
    several = log.printed_tokens is not None or _state_block(log)
    pool = Pool(log.kv_cache_tokens, log.max_model_len, log.kv_cache_dtype, log.block_size, shape, several_kinds=several)
    return _at_length(pool, given.max_model_len or log.max_model_len)


def _state_block(log: StartupLog) -> bool:
    """A block that is no power of two was made to cover a state."""
    return log.block_size is not None and log.block_size & (log.block_size - 1) != 0


def _at_length(pool: Pool, length: int | None) -> Pool:
    """The pool for requests of another longest length."""
    if length is None or pool.max_model_len is None or length == pool.max_model_len:
        return replace(pool, max_model_len=length)
    if pool.shape is not None:
        need = -(-length // pool.shape.block_size) + pool.shape.fixed
        return replace(pool, max_model_len=length, tokens=int(pool.shape.blocks / need * length))
    if pool.several_kinds:
        raise UsageError(
            f"layers of several kinds share this pool, counted at {pool.max_model_len} tokens: give --config FILE to count another length"
        )
    return replace(pool, max_model_len=length)


def serving_of(config: Mapping[str, object], defaults: Defaults, given: Given, log: StartupLog | None, live: Live | None) -> Serving:
    """The model as it would be served; what runs now says how many blocks there are.

    Raises `UsageError` or `ValueError` with the reason where it cannot be.
    """
    server = _server(given, log, live)
    model = read_model(config, defaults, (log.drafts if log else None) or 0, server.version)
    if live is not None and server.batched_tokens is None and log is None:
        server = replace(server, batched_tokens=_BUDGETS[0])
    served = _served_length(log, live)
    length = given.max_model_len or served or longest(complete(config, defaults), server.version)
    if length is None:
        raise UsageError("this config does not say how long a sequence may be: give --max-model-len N")
    kv_memory, blocks = given.kv_memory, None
    if kv_memory is None and given.gpu_memory is None:
        now = _server(replace(given, gpus=None, stages=None, kv_dtype=None) if _says_how(log) else given, log, live)
        now = _with_budget(model, now if now.batched_tokens else replace(now, batched_tokens=server.batched_tokens), log)
        server = replace(server, batched_tokens=now.batched_tokens)
        cache = kv_cache(model, now)
        blocks = _blocks_now(cache, log, live, served)
        if blocks is None and log is not None:
            kv_memory = log.kv_memory
        elif blocks is not None and server != now:
            kv_memory, blocks = blocks * cache.bytes_per_block, None
    weights = given.weights if given.weights is not None else weight_bytes(config)
    if weights is None and log is not None and log.weights is not None:
        weights = log.weights * server.gpus * server.stages
    return Serving(
        model=model,
        max_model_len=length,
        server=server,
        length_asked=given.max_model_len is not None,
        gpu_memory=given.gpu_memory,
        utilization=given.utilization,
        weights=weights,
        quantised=quantised(config),
        activations=given.activations,
        other=given.other,
        kv_memory=kv_memory,
        blocks=blocks,
    )


def _says_how(log: StartupLog | None) -> bool:
    return log is not None and log.tensor_parallel_size is not None


def _server(given: Given, log: StartupLog | None, live: Live | None) -> ServerSetup:
    version: Version = parse_version(given.version) or (log.version if log else None) or (_version_of(live) if live else None) or NEWEST
    block = given.block_size or (log.block_size if log else None) or (live.config.block_size if live else None)
    cached = log.prefix_caching if log and log.prefix_caching is not None else live.config.enable_prefix_caching if live else None
    dtype = given.kv_dtype or (log.kv_cache_dtype if log else None) or (live.config.cache_dtype if live else None) or "auto"
    return ServerSetup(
        version=version,
        gpus=given.gpus or (log.tensor_parallel_size if log else None) or 1,
        stages=given.stages or (log.pipeline_parallel_size if log else None) or 1,
        kv_dtype=dtype,
        block_size=block,
        batched_tokens=given.batched_tokens or (log.max_num_batched_tokens if log else None),
        prefix_caching=cached,
        drafts=(log.drafts if log else None) or 0,
        hybrid_manager=log.hybrid_manager if log else True,
        device="cpu" if log is not None and log.device == "CPU" else "gpu",
    )


def _version_of(live: Live) -> Version:
    """As old as a page without the label can be, as new as one with it: which of the two counts for windows and states."""
    return NEWEST if live.config.kv_cache_size_tokens else (0, 23)


def _with_budget(model: Model, server: ServerSetup, log: StartupLog | None) -> ServerSetup:
    """The step budget that gives vLLM's own concurrency, where windows make it count and the log does not name it."""
    windowed = any(isinstance(cache, Attention | Latent) and cache.window for cache in model.caches)
    if (
        server.batched_tokens is not None
        or not windowed
        or log is None
        or not log.max_concurrency
        or not log.max_model_len
        or not log.kv_memory
    ):
        return server
    tried = []
    for budget in _BUDGETS:
        one = replace(server, batched_tokens=budget)
        cache = kv_cache(model, one)
        reckoned = cache.concurrency(cache.blocks(log.kv_memory), log.max_model_len)
        tried.append((abs(reckoned / log.max_concurrency - 1), one))
    wrong, best = min(tried, key=lambda pair: pair[0])
    return best if wrong <= _AGREES else server


def _blocks_now(cache: KvCache, log: StartupLog | None, live: Live | None, served: int | None) -> int | None:
    """Blocks of one engine as it runs now; ``None`` where its figures are not those of this model, or there are none."""
    if live is not None:
        return live.blocks or (round(live.pool.tokens / served * cache.need(served)) if served else None)
    if log is None or not log.kv_cache_tokens or not served:
        return None
    return log.blocks or _blocks_by_log(cache, log, log.kv_cache_tokens / served * cache.need(served), served)


def _blocks_by_log(cache: KvCache, log: StartupLog, exact: float, served: int) -> int | None:
    """Blocks by vLLM's own count, and by the memory it found where that is the sharper of the two; ``None`` where they contradict."""
    by_concurrency = log.printed_tokens is not None
    # Tokens are cut to whole ones; vLLM's concurrency, where it alone counts, is rounded to two decimals.
    blocks = round(exact) if by_concurrency else math.ceil(round(exact, 3))
    if log.kv_memory is None:
        return blocks
    by_memory = log.kv_memory // cache.bytes_per_block
    if abs(by_memory - blocks) > _AGREES * blocks + 1:
        return None
    rounding = 0.005 * (cache.need(served) + GIB / cache.bytes_per_block)
    return by_memory if by_concurrency and abs(by_memory - blocks) <= rounding else blocks


def _served_length(log: StartupLog | None, live: Live | None) -> int | None:
    if live is not None and live.pool.max_model_len is not None:
        return live.pool.max_model_len
    return None if log is None else log.max_model_len
