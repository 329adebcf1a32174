"""How large the requests of one engine are, from its snapshots: means of prompt and output, and what a running sequence holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvwatch.capacity.concurrency import PREFILL_ONLY, tokens_at_end
from kvwatch.classifier.windows import increase
from kvwatch.model import Snapshot, Window

_LARGE: Final = 0.75
"""Part of the largest batch of a window from which on a batch is a large one (two of eight share a prefix: ``shared_prefix_v032``)."""
_FAR_LONGER: Final = 3.0
"""Running requests are longer than finished ones, for the long ones stay longest: with lognormal lengths of sigma 1 by a factor of 2.7."""
_TURNED_OVER: Final = 3.0
"""Requests that finished in the slow window for each running one, from which on their lengths are those of the running ones as well."""
_WORTH_NAMING: Final = 0.1
"""Share of the pool."""


def sequence_share_of(snapshots: Sequence[Snapshot], nobodys: float) -> float | None:
    """Share of the pool that one running sequence holds, in the largest batches: of a shared prefix few sequences seem to hold much each.

    The share of the pool that is *nobodys* is not theirs.
    """
    shares = [max(0.0, (s.kv_usage or 0.0) - nobodys) / s.running for s in large_batches(snapshots) if s.running]
    return sum(shares) / len(shares) if shares else None


def large_batches(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Those in which about the most run, and the usage of the cache is known."""
    known = [s for s in snapshots if s.running and s.kv_usage is not None]
    most = max((s.running or 0.0 for s in known), default=0.0)
    return [s for s in known if (s.running or 0.0) >= _LARGE * most]


def mean_running(snapshots: Sequence[Snapshot]) -> float | None:
    """How many run in the largest batches."""
    counts = [s.running for s in large_batches(snapshots) if s.running is not None]
    return sum(counts) / len(counts) if counts else None


def held_beyond(window: Window, pool: float | None, prompt: float | None, output: float | None) -> float | None:
    """Share of the *pool* (tokens) held beyond what requests as long as those that finished in the slow *window* explain.

    A leak in an engine that never rests, transfers, or one far longer request: /metrics does not tell which. ``None`` where nothing is, or
    where too few have finished to know.
    """
    running, usage, finished = window.running, window.kv_usage, window.finished
    if not pool or prompt is None or output is None or output <= PREFILL_ONLY or running is None or usage is None or not running.mean:
        return None
    explained = running.mean * tokens_at_end(prompt, output, None) / pool
    turned_over = finished is not None and finished >= _TURNED_OVER * running.mean
    if not turned_over or usage.mean < _FAR_LONGER * explained or usage.low - explained < _WORTH_NAMING:
        return None
    return usage.low - explained


def own_tokens(held: float | None, prompt: float | None, output: float | None) -> float | None:
    """KV tokens a running sequence holds, of the *held* per running one.

    Where requests end with their first token (a prefill server of a pair), finished ones keep their blocks until the decode server has
    fetched them, and what is held per running one is no size of a request: it holds its prompt.
    """
    if held is None or prompt is None or output is None or output > PREFILL_ONLY:
        return held
    return min(held, tokens_at_end(prompt, output, None))


def mean_of(first: Snapshot, last: Snapshot, sum_name: str, count_name: str) -> float | None:
    """Mean of what a histogram's ``_sum`` and ``_count`` gained; over its whole life while nothing came in this window."""
    total, count = getattr(last, sum_name), getattr(last, count_name)
    gained, new = increase(getattr(first, sum_name), total), increase(getattr(first, count_name), count)
    if gained is not None and new and gained >= 0:
        return float(gained / new)
    return float(total / count) if total and count else None


def prompt_length(snapshots: Sequence[Snapshot]) -> float | None:
    """Mean length of the prompts admitted lately.

    ``prompt_tokens_total`` jumps by a whole prompt when its first token comes, as ``time_to_first_token`` counts one, so
    their quotient is younger than ``request_prompt_tokens``, which is observed only at the end of a request.
    """
    first, last = snapshots[0], snapshots[-1]
    tokens = increase(first.prompt_tokens, last.prompt_tokens)
    if tokens and first.time_to_first_token is not None and last.time_to_first_token is not None:
        admitted = last.time_to_first_token.count - first.time_to_first_token.count
        if admitted > 0:
            return tokens / admitted
    return mean_of(first, last, "prompt_length_sum", "prompt_length_count")


def prefix_hit_ratio_of(first: Snapshot, last: Snapshot) -> float | None:
    """Share of the prompt tokens looked up between two snapshots that were found in the prefix cache (0..1)."""
    queries, hits = increase(first.prefix_queries, last.prefix_queries), increase(first.prefix_hits, last.prefix_hits)
    return min(1.0, hits / queries) if queries and hits is not None else None
