"""Where a plan's facts come from: a model's ``config.json``, a startup log, a live server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvwatch.capacity.layers import text_config, whole
from kvwatch.capacity.pool import pool_tokens, ranks_beside
from kvwatch.capacity.startup_log import StartupLog, read_startup_log
from kvwatch.config.policy import KnownConfig
from kvwatch.errors import ScrapeError, UsageError
from kvwatch.model import Snapshot
from kvwatch.plan.options import Pool
from kvwatch.poller.vllm import parse_scrape

Fetch = Callable[[str], bytes]

_LENGTHS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length")


@dataclass(frozen=True, slots=True)
class Live:
    """What one scrape of a server says of its pool and of the requests it has served."""

    pool: Pool
    typical_tokens: float | None
    """Mean prompt and output of all requests that have finished since the server started."""
    engines: int


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
    """A vLLM startup log; raises `UsageError` naming the file, when it is none or the server in it did not start."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            log = read_startup_log(lines)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    return log


def longest(config: Mapping[str, object]) -> int | None:
    """The longest sequence the model was made for: the smallest of the config's limits, as vLLM takes it."""
    text = text_config(config)
    found = [length for key in _LENGTHS if (length := whole(text, key))]
    return min(found) if found else None


def scrape_live(url: str, fetch: Fetch, known: KnownConfig) -> Live:
    """One scrape of a server; with several engines the smallest pool. Raises `UsageError` with the reason of the failure."""
    try:
        scrape = parse_scrape(fetch(url), 0.0)
    except ScrapeError as error:
        raise UsageError(f"{url}: {error}") from None
    pools = [
        (tokens, snapshot)
        for snapshot in scrape.snapshots
        if (tokens := pool_tokens(snapshot.config, ranks_beside(snapshot.engine, scrape), known)) is not None
    ]
    if not pools:
        raise UsageError(f"{url} does not say how many tokens its KV cache holds: give its startup log (--log FILE) too")
    tokens, snapshot = min(pools, key=lambda pair: pair[0])
    length = known.max_model_len or snapshot.config.max_model_len
    return Live(Pool(tokens, length, snapshot.config.cache_dtype), _mean_request(snapshot), len(pools))


def _mean_request(snapshot: Snapshot) -> float | None:
    """Mean tokens of prompt and output over all finished requests; ``None`` while none has finished."""
    prompts, outputs = snapshot.prompt_length_count, snapshot.generation_length_count
    if not prompts or not outputs or snapshot.prompt_length_sum is None or snapshot.generation_length_sum is None:
        return None
    return snapshot.prompt_length_sum / prompts + snapshot.generation_length_sum / outputs
