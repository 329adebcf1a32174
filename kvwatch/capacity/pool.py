"""How much fits the KV cache: pool, sequences, demand, time until full. Tokens and bytes in, whole sequences out.

A pool in tokens comes, best source first, from ``vllm:cache_config_info{kv_cache_size_tokens}``, from the startup log
(`kvwatch.capacity.startup_log`), from ``(num_gpu_blocks - 1) * block_size``, or from the arithmetic of GPU memory.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from kvwatch.config.policy import KnownConfig
from kvwatch.model import EngineConfig, EngineId, Scrape, Snapshot

HEADROOM: Final = 0.20
"""Share of the pool left free when a number of sequences is called safe."""
_DECIMALS: Final = 9
"""Products are rounded here before they are cut down to whole sequences: 0.8 x 35 must be 28, not 27.999…"""


def pool_tokens(config: EngineConfig, engines: int, known: KnownConfig) -> int | None:
    """Tokens the KV pool of one engine holds, or ``None`` when nobody says.

    ``engines`` is how many engines carry the same ``cache_config_info``: under data parallelism vLLM repeats the *sum* of
    ``num_gpu_blocks`` on each of them, while ``kv_cache_size_tokens`` is each engine's own. One block of every engine is
    vLLM's null block and never holds tokens. Where layers keep states or a window, blocks are no tokens: each kind of layer takes its own
    from the pool, and only ``kv_cache_size_tokens`` knows. Raises `ValueError` when ``engines`` is below 1.
    """
    if engines < 1:
        raise ValueError(f"a pool belongs to at least one engine, not to {engines}")
    if config.kv_cache_size_tokens:
        return config.kv_cache_size_tokens
    if known.kv_cache_tokens:
        return known.kv_cache_tokens
    if config.num_gpu_blocks and config.block_size and not config.mixed_layers:
        tokens = (config.num_gpu_blocks // engines - 1) * config.block_size
        return tokens if tokens > 0 else None
    return None


def ranks_beside(engine: EngineId, scrape: Scrape) -> int:
    """How many data-parallel ranks, *engine* among them, its server shows: a page may hold servers of other models or other replicas."""
    return ranks_by_server(scrape)[server_of(engine)]


def ranks_by_server(scrape: Scrape) -> Counter[tuple[str, str]]:
    """The same for all engines at once, by `server_of`."""
    return Counter(server_of(one.engine) for one in scrape.snapshots)


def server_of(engine: EngineId) -> tuple[str, str]:
    """Engines with the same model and replica are the ranks of one server."""
    return engine.model_name, _replica(engine)


class RanksSeen:
    """How many data-parallel ranks each server has shown at once: one that is gone still has its share of the sum that vLLM repeats.

    A server is forgotten with its last rank, and counted anew when its number of blocks changes.
    """

    def __init__(self) -> None:
        self._most: dict[tuple[str, str, int | None], int] = {}

    def look(self, scrape: Scrape) -> None:
        """Take in one more scrape."""
        ranks = ranks_by_server(scrape)
        counts = {_server(one): ranks[server_of(one.engine)] for one in scrape.snapshots}
        self._most = {server: max(count, self._most.get(server, 0)) for server, count in counts.items()}

    def beside(self, snapshot: Snapshot) -> int:
        """The ranks of the server that *snapshot* of the last scrape belongs to, itself among them."""
        return self._most[_server(snapshot)]


def _server(snapshot: Snapshot) -> tuple[str, str, int | None]:
    return snapshot.engine.model_name, _replica(snapshot.engine), snapshot.config.num_gpu_blocks


def _replica(engine: EngineId) -> str:
    """What the poller puts behind ``@`` where replicas share a page."""
    return engine.engine.partition("@")[2]


def memory_for_kv(*, gpu_memory: float, utilization: float, weights: float, activations: float, other: float) -> int:
    """Bytes one GPU has left for KV: ``memory x utilization - weights - activations and graphs - fragmentation and context``.

    Every argument but ``utilization`` (a share in 0..1) is in bytes of one GPU. Raises `ValueError` saying why when nothing
    is left or an argument makes no sense.
    """
    if gpu_memory <= 0:
        raise ValueError("GPU memory must be more than 0 bytes")
    if not 0 < utilization <= 1:
        raise ValueError(f"GPU memory utilization must be above 0 and at most 1, not {utilization:g}")
    if min(weights, activations, other) < 0:
        raise ValueError("memory that is used cannot be negative")
    usable = gpu_memory * utilization
    if weights >= usable:
        raise ValueError(
            f"the weights ({_gib(weights)}) do not fit: {_gib(gpu_memory)} x {utilization:g} leaves vLLM {_gib(usable)} on each GPU"
        )
    left = usable - weights - activations - other
    if left <= 0:
        raise ValueError(
            f"nothing is left for KV: {_gib(usable)} less {_gib(weights)} of weights, {_gib(activations)} of activations and graphs "
            f"and {_gib(other)} of fragmentation and context is {_gib(left)}"
        )
    return int(left)


def sequences(pool: float, tokens_per_sequence: float, headroom: float = 0.0) -> int:
    """Whole sequences of that size that fit the pool with ``headroom`` (a share) left free; 0 when not even one does.

    Raises `ValueError` for a size that is not positive, a negative pool, or a headroom outside 0..1.
    """
    if tokens_per_sequence <= 0:
        raise ValueError("a sequence holds more than 0 tokens")
    if pool < 0 or not 0 <= headroom < 1:
        raise ValueError("a pool is not negative and its headroom is a share from 0 to below 1")
    return math.floor(round(pool / tokens_per_sequence * (1 - headroom), _DECIMALS))


def safe_sequences(pool: float, tokens_per_sequence: float, headroom: float = HEADROOM) -> int:
    """The ``max_num_seqs`` that lets sequences of that size run without preemption, with 20 % of the pool left free."""
    return sequences(pool, tokens_per_sequence, headroom)


def demand(requests: float, tokens_per_sequence: float, pool: float) -> float:
    """KV wanted over KV there is: ``(running + waiting) x tokens per sequence / pool``; above 1 one replica is not enough."""
    if pool <= 0:
        raise ValueError("demand on a pool of no tokens is not a number")
    return requests * tokens_per_sequence / pool


def seconds_to_full(free: float, per_second: float) -> float | None:
    """Seconds until the pool is full at the present fill rate, both in tokens or both as shares; ``None`` while it does not fill."""
    if per_second <= 0:
        return None
    return max(free, 0.0) / per_second


def round_up_to_block(tokens: float, block_size: int | None) -> int:
    """Tokens a sequence really occupies: vLLM hands out whole blocks."""
    size = block_size or 1
    return math.ceil(tokens / size) * size


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
