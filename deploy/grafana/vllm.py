"""What only vLLM itself counts, from its own series (names as of 0.20): for a Prometheus that scrapes vLLM as well as kvwatch."""

from __future__ import annotations

from typing import Final

from panels import BYTES_PER_SECOND, COUNT, PER_SECOND, RATIO, SECONDS, TOKENS_PER_SECOND, Panel, Query, timeseries
from vocabulary import of_vllm

PRESENT: Final = 'vllm:num_requests_running{namespace=~"$namespace", pod=~"$pod", model_name=~"$model_name"}'
"""A series every vLLM has."""
_WHOLE: Final = of_vllm()


def panels() -> list[Panel]:
    """The panels, by what they are about: requests, their time, caches, speculation, transfer."""
    return [*_requests(), *_time(), *_caches(), *_speculation(), *_transfer()]


def _rate(counter: str, by: str = "") -> str:
    """Rate of a counter of the chosen engines, summed."""
    return f"sum{f' by ({by})' if by else ''} (rate(vllm:{counter}{_WHOLE}[$__rate_interval]))"


def _share(part: str, whole: str) -> str:
    """One rate by another; nothing while there is nothing of the whole."""
    return f"{_rate(part)} / ({_rate(whole)} > 0)"


def _requests() -> list[Panel]:
    return [
        timeseries(
            "Finished requests by reason",
            "Per second. `length` is the token limit, `stop` the model's own end. Most clients that hang up are counted nowhere.",
            [Query(_rate("request_success_total", "finished_reason"), "{{finished_reason}}")],
            PER_SECOND,
            width=8,
        ),
        timeseries(
            "Requests and preemptions",
            "Finished and preempted per second. vLLM counts a preemption when the request next gives out a token, so it comes late.",
            [Query(_rate("request_success_total"), "finished"), Query(_rate("num_preemptions_total"), "preempted")],
            PER_SECOND,
            width=8,
        ),
        timeseries(
            "Waiting by reason",
            "`capacity` waits for room in the batch or the cache. `deferred` waits for something else: an adapter, a grammar, remote KV. "
            "vLLM 0.20 and newer.",
            [Query(f"sum by (reason) (vllm:num_requests_waiting_by_reason{_WHOLE})", "{{reason}}")],
            COUNT,
            width=8,
        ),
    ]


def _time() -> list[Panel]:
    def quantile(phase: str, q: float) -> str:
        return f"histogram_quantile({q}, {_rate(f'request_{phase}_time_seconds_bucket', 'le')})"

    phases = ("queue", "prefill", "decode")
    return [
        timeseries(
            f"Time in queue, prefill and decode, {name}",
            f"{explained} of the requests that finished, by phase. A queue that grows is the first thing users notice.",
            [Query(quantile(phase, q), phase) for phase in phases],
            SECONDS,
        )
        for q, name, explained in ((0.5, "median", "The median"), (0.95, "p95", "The 95th percentile"))
    ]


def _caches() -> list[Panel]:
    return [
        timeseries(
            "Prefix cache hit rate",
            "Share of the queried prompt tokens that were found: in the engine's own cache, and in an external one (KV transfer, offload). "
            "No line while nobody asks.",
            [
                Query(_share("prefix_cache_hits_total", "prefix_cache_queries_total"), "own"),
                Query(_share("external_prefix_cache_hits_total", "external_prefix_cache_queries_total"), "external"),
            ],
            RATIO,
            top=1,
        ),
        timeseries(
            "Prompt tokens by source",
            "Per second: computed here, found in the cache, or fetched from elsewhere.",
            [Query(_rate("prompt_tokens_by_source_total", "source"), "{{source}}")],
            TOKENS_PER_SECOND,
        ),
    ]


def _speculation() -> list[Panel]:
    return [
        timeseries(
            "Speculative decoding: accepted",
            "Share of the drafted tokens that the model accepted. Only where speculative decoding is on.",
            [Query(_share("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"), "accepted")],
            RATIO,
            top=1,
        ),
        timeseries(
            "Speculative decoding: tokens per step",
            "Tokens that come of one step of the model: its own and the accepted ones of the draft. 1 gains nothing.",
            [Query(f"1 + {_share('spec_decode_num_accepted_tokens_total', 'spec_decode_num_drafts_total')}", "tokens")],
            COUNT,
        ),
    ]


def _transfer() -> list[Panel]:
    return [
        timeseries(
            "KV transfer",
            "Bytes that NIXL moved per second. Only where prefill and decode are apart.",
            [Query(_rate("nixl_bytes_transferred_sum"), "moved")],
            BYTES_PER_SECOND,
            width=8,
        ),
        timeseries(
            "Duration of a KV transfer",
            "Median and 95th percentile of NIXL's transfers.",
            [
                Query(f"histogram_quantile({q}, {_rate('nixl_xfer_time_seconds_bucket', 'le')})", name)
                for q, name in ((0.5, "median"), (0.95, "p95"))
            ],
            SECONDS,
            width=8,
        ),
        timeseries(
            "KV transfers that failed",
            "Per second: failed, and prefilled KV that nobody fetched in time. Each is computed again.",
            [Query(_rate("nixl_num_failed_transfers_total"), "failed"), Query(_rate("nixl_num_kv_expired_reqs_total"), "expired")],
            PER_SECOND,
            width=8,
        ),
    ]
