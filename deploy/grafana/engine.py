"""One engine: the five lines, the cache, the queue, and what the verdict rests on."""

from __future__ import annotations

from typing import Final

from panels import (
    COUNT,
    RATIO,
    SECONDS,
    TOKENS,
    TOKENS_PER_SECOND,
    Json,
    Panel,
    Query,
    Row,
    dashboard,
    stat,
    state_timeline,
    steps,
    table,
    timeseries,
    value_mappings,
    variable,
)
from vocabulary import KV_WATERMARK, STATE_MAPPINGS, STORM_RATIO, links, selector, state_number

UID: Final = "kvwatch-engine"
TITLE: Final = "kvwatch / Engine"
_FLEET_UID: Final = "kvwatch-fleet"
_FLEET_TITLE: Final = "kvwatch / Fleet"
_LABELS: Final = ('target=~"$target"', 'model_name=~"$model_name"', 'engine=~"$engine"')
_ENGINE: Final = selector(*_LABELS)
_SLOW: Final = selector(*_LABELS, 'window="slow"')
_TARGET: Final = selector('target=~"$target"')


def build() -> Json:
    """The dashboard."""
    known = 'kvwatch_state{job=~"$job", instance=~"$instance"'
    variables = [
        variable("job", "Job", "label_values(kvwatch_build_info, job)", every=True),
        variable("instance", "kvwatch", 'label_values(kvwatch_build_info{job=~"$job"}, instance)', every=False),
        variable("target", "Target", f"label_values({known}}}, target)", every=False),
        variable("model_name", "Model", f'label_values({known}, target=~"$target"}}, model_name)', every=False),
        variable("engine", "Engine", f'label_values({known}, target=~"$target", model_name=~"$model_name"}}, engine)', every=False),
    ]
    rows = [
        Row("Verdict", _verdict()),
        Row("The five lines: any one getting worse is a failure", _five_lines()),
        Row("KV cache", _cache()),
        Row("Queue and work", _work()),
        Row("Evidence", _evidence()),
    ]
    description = "One vLLM engine as kvwatch sees it: what holds it back, since when, and the numbers that decided."
    return dashboard(UID, TITLE, description, rows=rows, variables=variables, links=links(_FLEET_UID, _FLEET_TITLE))


def _verdict() -> list[Panel]:
    return [
        stat("State", "What holds the engine back now.", Query(state_number(*_LABELS)), COUNT, mappings=STATE_MAPPINGS),
        stat(
            "Preemption ratio now",
            "Of the requests that left the running batch in the slow window (2 min), the share that was preempted. Above 10 % it pages.",
            Query(f"kvwatch_preemption_ratio{_SLOW}"),
            RATIO,
            thresholds=steps(("green", None), ("orange", 0.02), ("red", STORM_RATIO)),
        ),
        stat(
            "KV demand now",
            "(running + waiting) x tokens per sequence / pool. Above 1 one replica is not enough.",
            Query(f"kvwatch_kv_demand_ratio{_ENGINE}"),
            RATIO,
            thresholds=steps(("green", None), ("orange", 0.8), ("red", 1)),
        ),
        stat(
            "Sustainable sequences",
            "How many sequences of the size seen now fit the pool with 20 % headroom: the number to compare the running requests with.",
            Query(f"kvwatch_sustainable_sequences{_ENGINE}"),
            COUNT,
        ),
        stat(
            "Recomputed work",
            "Estimate of the share of the computed tokens that had been computed before and were thrown away by a preemption.",
            Query(f"kvwatch_recompute_ratio{_ENGINE}"),
            RATIO,
            thresholds=steps(("green", None), ("orange", 0.05), ("red", 0.2)),
        ),
        stat(
            "State changes",
            "How often the state changed in the time range shown.",
            Query(f"sum(increase(kvwatch_state_transitions_total{_ENGINE}[$__range]))"),
            COUNT,
        ),
        state_timeline(
            "Cause",
            "The cause that held at each moment, one band per cause that was seen.",
            [Query(f"kvwatch_cause{_ENGINE} == 1", "{{cause}}")],
            mappings=value_mappings((1, "holds", "blue")),
            height=6,
        ),
    ]


def _five_lines() -> list[Panel]:
    return [
        timeseries(
            "Throughput",
            "Tokens generated per second.",
            [Query(f"kvwatch_generation_tokens_per_second{_ENGINE}", "generated")],
            TOKENS_PER_SECOND,
            width=8,
        ),
        timeseries(
            "Preemption ratio",
            "Share of the requests leaving the running batch that were preempted, over the slow (2 min) and the fast window (30 s). "
            "Both above it page.",
            [Query(f"kvwatch_preemption_ratio{_ENGINE}", "{{window}}")],
            RATIO,
            width=8,
            top=1,
            limit=STORM_RATIO,
        ),
        timeseries(
            "Time to first token",
            "Quantiles over the slow window, estimated from vLLM's histogram buckets. A growing queue shows here first.",
            [Query(f"kvwatch_time_to_first_token_seconds{_ENGINE}", "{{quantile}}")],
            SECONDS,
            width=8,
        ),
        timeseries(
            "Inter-token latency",
            "Quantiles of the time between two tokens of a request. It climbs with the batch, and jumps when a request is preempted.",
            [Query(f"kvwatch_inter_token_latency_seconds{_ENGINE}", "{{quantile}}")],
            SECONDS,
        ),
        timeseries(
            "End-to-end latency",
            "Quantiles of the whole request, of those that finished. The 0.99 line is the fifth of the five.",
            [Query(f"kvwatch_e2e_request_latency_seconds{_ENGINE}", "{{quantile}}")],
            SECONDS,
        ),
    ]


def _cache() -> list[Panel]:
    return [
        timeseries(
            "KV cache usage",
            "Now, and the highest of the last 30 s. Usage swings in a storm because preemptions free blocks; the peak does not.",
            [Query(f"kvwatch_kv_cache_usage_ratio{_ENGINE}", "now"), Query(f"kvwatch_kv_cache_usage_peak_ratio{_ENGINE}", "peak")],
            RATIO,
            width=8,
            top=1,
            limit=KV_WATERMARK,
        ),
        timeseries(
            "KV tokens",
            "The pool, what is free in it, and what a running sequence holds on average.",
            [
                Query(f"kvwatch_kv_capacity_tokens{_ENGINE}", "capacity"),
                Query(f"kvwatch_kv_free_tokens{_ENGINE}", "free"),
                Query(f"kvwatch_kv_tokens_per_sequence{_ENGINE}", "per sequence"),
            ],
            TOKENS,
            width=8,
        ),
        timeseries(
            "KV demand",
            "(running + waiting) x tokens per sequence / pool. Above the line the requests there are do not fit.",
            [Query(f"kvwatch_kv_demand_ratio{_ENGINE}", "demand")],
            RATIO,
            width=8,
            limit=1,
        ),
        timeseries(
            "Time until full",
            "At the rate the cache fills now. No line while it does not fill.",
            [Query(f"kvwatch_kv_seconds_to_full{_ENGINE}", "until full")],
            SECONDS,
        ),
        timeseries(
            "Preemptions",
            "Preemptions in the slow (2 min) and the fast window (30 s). vLLM counts one when the victim next emits a token.",
            [Query(f"kvwatch_preemptions{_ENGINE}", "{{window}}")],
            COUNT,
        ),
    ]


def _work() -> list[Panel]:
    return [
        timeseries(
            "Requests",
            "In the batch, in the queue, and how many of this size the cache can sustain.",
            [
                Query(f"kvwatch_requests_running{_ENGINE}", "running"),
                Query(f"kvwatch_requests_waiting{_ENGINE}", "waiting"),
                Query(f"kvwatch_sustainable_sequences{_ENGINE}", "sustainable"),
            ],
            COUNT,
        ),
        timeseries(
            "Tokens",
            "Prompt tokens read and tokens generated, per second.",
            [
                Query(f"kvwatch_prompt_tokens_per_second{_ENGINE}", "prompt"),
                Query(f"kvwatch_generation_tokens_per_second{_ENGINE}", "generated"),
            ],
            TOKENS_PER_SECOND,
        ),
    ]


def _evidence() -> list[Panel]:
    return [
        state_timeline(
            "Alerts",
            "Alerts that kvwatch itself sees firing for this engine. Each has a heading in the runbook.",
            [Query(f"kvwatch_alert_active{_ENGINE}", "{{alert}} ({{severity}})")],
            mappings=value_mappings((0, "quiet", "green"), (1, "firing", "red")),
            width=12,
        ),
        table(
            "Where the numbers come from",
            "The vLLM name that carried each signal: names change between vLLM versions.",
            [("Found", Query(f"kvwatch_signal_source_info{_TARGET}"), COUNT)],
            hide=("job", "instance", "target", "Value"),
            width=12,
        ),
        timeseries(
            "Duration of a poll",
            "How long vLLM took to answer. It renders /metrics on the loop that serves requests, so a slow answer is evidence too.",
            [Query(f"kvwatch_target_scrape_duration_seconds{_TARGET}", "{{target}}")],
            SECONDS,
        ),
        timeseries(
            "Target up",
            "1 while the last poll of the target succeeded.",
            [Query(f"kvwatch_target_up{_TARGET}", "{{target}}")],
            COUNT,
            top=1,
        ),
    ]
