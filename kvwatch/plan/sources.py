"""Where a plan's facts come from: a model's ``config.json``, a startup log, a live server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from kvwatch.capacity.class_defaults import Defaults
from kvwatch.capacity.concurrency import SequenceSizes
from kvwatch.capacity.pool import pool_tokens, ranks_beside
from kvwatch.capacity.pool_fit import shape_of
from kvwatch.capacity.startup_log import StartupLog, read_startup_log
from kvwatch.config.policy import KnownConfig
from kvwatch.errors import ScrapeError, UsageError
from kvwatch.model import EngineConfig, EngineId, Snapshot
from kvwatch.plan.families import family_of_several_kinds, is_of_one_kind
from kvwatch.plan.options import Pool
from kvwatch.poller.fetch import Fetch
from kvwatch.poller.vllm import parse_scrape


@dataclass(frozen=True, slots=True)
class Live:
    """What one scrape of a server says of its pool and of the requests it has served."""

    pool: Pool
    typical_tokens: float | None
    """KV tokens a request holds at its end, by all that have finished since the server started and by those that run now."""
    engines: int
    engine: EngineId
    """The one with the smallest pool."""
    blocks: int | None
    """Of one engine."""
    config: EngineConfig
    counted: bool
    """The pool's tokens are its server's own figure, not blocks times tokens of a block."""
    unsure: str | None = None
    """Why the pool's tokens may be wrong without a config.json."""


@cache
def class_defaults() -> Defaults:
    """What the config classes of transformers set where a ``config.json`` is silent, by model type."""
    table = json.loads(resources.files("kvwatch.plan").joinpath("class_defaults.json").read_text(encoding="utf-8"))
    models: Defaults = table["models"]
    return models


def read_config(path: Path) -> Mapping[str, object]:
    """A model's ``config.json`` (or the directory it lies in); raises `UsageError` naming the file."""
    path = path / "config.json" if path.is_dir() else path
    try:
        parsed = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise UsageError(f"{path} is not a model's config.json: it holds no object")
    return parsed


def read_log(path: Path) -> StartupLog:
    """A vLLM startup log; raises `UsageError` naming the file when it is none. A start that failed is in it as such."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            log = read_startup_log(lines)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    return log


def scrape_live(url: str, fetch: Fetch, known: KnownConfig) -> Live:
    """One scrape of a server; with several engines the smallest pool. Raises `UsageError` with the reason of the failure."""
    try:
        scrape = parse_scrape(fetch(url), 0.0)
    except ScrapeError as error:
        raise UsageError(f"{url}: {error}") from None
    pools = [
        (tokens, snapshot, ranks_beside(snapshot.engine, scrape))
        for snapshot in scrape.snapshots
        if (tokens := pool_tokens(snapshot.config, ranks_beside(snapshot.engine, scrape), known)) is not None
    ]
    if not pools:
        raise UsageError(f"{url} does not say how many tokens its KV cache holds: give its startup log (--log FILE) too")
    tokens, snapshot, ranks = min(pools, key=lambda pool: pool[0])
    config = snapshot.config
    blocks = config.num_gpu_blocks // ranks if config.num_gpu_blocks else None
    length = known.max_model_len or config.max_model_len
    counted = bool(config.kv_cache_size_tokens or known.kv_cache_tokens)
    shape = shape_of(config, ranks)
    several = bool(blocks and config.block_size and config.max_model_len and config.kv_cache_size_tokens) and (
        shape is None or shape.fixed > 0
    )
    return Live(
        pool=Pool(
            tokens,
            length,
            config.cache_dtype,
            config.block_size,
            shape if several else None,
            at_most=not counted and not is_of_one_kind(snapshot.engine.model_name),
            several_kinds=several,
        ),
        typical_tokens=_usual_request(snapshot, None if several else tokens),
        engines=len(pools),
        engine=snapshot.engine,
        blocks=blocks,
        config=config,
        counted=counted,
        unsure=None if counted else family_of_several_kinds(snapshot.engine.model_name, config.block_size),
    )


def _usual_request(snapshot: Snapshot, pool: int | None) -> float | None:
    """KV tokens of a request at its end; ``None`` while none has finished.

    The mean of all that finished; where prompts share blocks of the *pool*, by what those hold that run (one sample of it is too noisy
    elsewhere, and a pool of several kinds of layers tells nothing of it). The daemon has the same formula from the last two minutes.
    """
    prompts, outputs = snapshot.prompt_length_count, snapshot.generation_length_count
    if not prompts or not outputs or snapshot.prompt_length_sum is None or snapshot.generation_length_sum is None:
        return None
    held = snapshot.kv_usage * pool / snapshot.running if pool and snapshot.running and snapshot.kv_usage else None
    hits = (snapshot.prefix_hits or 0.0) / snapshot.prefix_queries if snapshot.prefix_queries else None
    sizes = SequenceSizes(
        snapshot.prompt_length_sum / prompts, snapshot.generation_length_sum / outputs, held, prefix_hits=hits, running=snapshot.running
    )
    return sizes.part_of(pool) if pool and sizes.shared is not None else replace(sizes, held=None).at_end
