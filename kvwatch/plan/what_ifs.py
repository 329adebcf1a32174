"""Other ways to serve the same model, each changing one thing: what each lever buys. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvwatch.capacity.cache import kv_cache
from kvwatch.capacity.kv_dtype import SIXTEEN_BITS
from kvwatch.plan.options import Pool, Serving

_FOUR_BIT: Final = 5 / 14
"""14 GB of 16-bit weights are about 5 GB in 4 bits (playbook): embeddings and scales stay wider."""


def serving_what_ifs(serving: Serving) -> list[tuple[str, Serving]]:
    """Other ways to serve the same model, each changing one thing."""
    found: list[tuple[str, Serving]] = []
    server = serving.server
    if server.kv_dtype in SIXTEEN_BITS and not (server.kv_dtype == "auto" and serving.model.own_kv_dtype):
        found.append(("fp8 KV", replace(serving, server=replace(server, kv_dtype="fp8"))))
    computed = serving.kv_memory is None and serving.blocks is None
    if computed and serving.weights is not None and not serving.quantised:
        found.append(("4-bit weights", replace(serving, weights=round(serving.weights * _FOUR_BIT))))
    if serving.max_model_len > 1:
        found.append((f"length {serving.max_model_len // 2}", replace(serving, max_model_len=serving.max_model_len // 2)))
    if computed and serving.utilization < 0.95:  # noqa: PLR2004 - the playbook's upper end
        found.append(("util. 0.95", replace(serving, utilization=0.95)))
    if computed:
        found.append((f"{2 * server.gpus} GPUs", replace(serving, server=replace(server, gpus=2 * server.gpus))))
    return [(name, _with_memory(other, serving)) for name, other in found]


def _with_memory(other: Serving, serving: Serving) -> Serving:
    """The blocks of the way it is served now, as bytes: another dtype cuts them anew."""
    if serving.blocks is None:
        return other
    return replace(other, blocks=None, kv_memory=serving.blocks * kv_cache(serving.model, serving.server).bytes_per_block)


def pool_what_ifs(pool: Pool) -> list[tuple[str, Pool]]:
    """What can be said of another setting when only what the server says of its pool is known."""
    found: list[tuple[str, Pool]] = []
    if pool.kv_cache_dtype in SIXTEEN_BITS and not pool.several_kinds:
        found.append(("fp8 KV", replace(pool, tokens=2 * pool.tokens, kv_cache_dtype="fp8", shape=None)))
    if pool.max_model_len is not None and pool.max_model_len > 1 and not pool.only_longest:
        half = pool.max_model_len // 2
        tokens = pool.tokens
        if pool.shape is not None:
            tokens = int(pool.shape.blocks / (-(-half // pool.shape.block_size) + pool.shape.fixed) * half)
        found.append((f"length {half}", replace(pool, max_model_len=half, tokens=tokens)))
    return found
