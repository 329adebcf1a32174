"""One engine's cache, queue and work."""

from __future__ import annotations

from panels import COUNT, RATIO, SECONDS, TOKENS, TOKENS_PER_SECOND, Panel, Query, timeseries
from vocabulary import KV_WATERMARK


def cache(engine: str) -> list[Panel]:
    """The cache of the engine that the label selector *engine* chooses."""
    return [
        timeseries(
            "KV cache usage",
            "Now, and the highest of the last 30 s. Usage swings in a storm because preemptions free blocks; the peak does not.",
            [Query(f"kvwatch_kv_cache_usage_ratio{engine}", "now"), Query(f"kvwatch_kv_cache_usage_peak_ratio{engine}", "peak")],
            RATIO,
            width=8,
            top=1,
            limit=KV_WATERMARK,
        ),
        timeseries(
            "KV tokens",
            "The pool, what is free in it, and what a running sequence holds on average.",
            [
                Query(f"kvwatch_kv_capacity_tokens{engine}", "capacity"),
                Query(f"kvwatch_kv_free_tokens{engine}", "free"),
                Query(f"kvwatch_kv_tokens_per_sequence{engine}", "per sequence"),
            ],
            TOKENS,
            width=8,
        ),
        timeseries(
            "KV demand",
            "(running + waiting) x tokens per sequence / pool. Above the line the requests there are do not fit.",
            [Query(f"kvwatch_kv_demand_ratio{engine}", "demand")],
            RATIO,
            width=8,
            limit=1,
        ),
        timeseries(
            "Time until full",
            "At the rate the cache fills now. No line while it does not fill.",
            [Query(f"kvwatch_kv_seconds_to_full{engine}", "until full")],
            SECONDS,
        ),
        timeseries(
            "Preemptions",
            "Preemptions in the slow (2 min) and the fast window (30 s). vLLM counts one when the victim next emits a token.",
            [Query(f"kvwatch_preemptions{engine}", "{{window}}")],
            COUNT,
        ),
    ]


def work(engine: str) -> list[Panel]:
    """Its requests and tokens."""
    return [
        timeseries(
            "Requests",
            "In the batch, in the queue, and how many of this size the cache can sustain.",
            [
                Query(f"kvwatch_requests_running{engine}", "running"),
                Query(f"kvwatch_requests_waiting{engine}", "waiting"),
                Query(f"kvwatch_sustainable_sequences{engine}", "sustainable"),
            ],
            COUNT,
        ),
        timeseries(
            "Tokens",
            "Prompt tokens read and tokens generated, per second.",
            [
                Query(f"kvwatch_prompt_tokens_per_second{engine}", "prompt"),
                Query(f"kvwatch_generation_tokens_per_second{engine}", "generated"),
            ],
            TOKENS_PER_SECOND,
        ),
    ]
