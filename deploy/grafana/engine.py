"""One engine: the five lines, the cache, the queue, and what the verdict rests on."""

from __future__ import annotations

from typing import Final

import load
import vllm
from panels import (
    COUNT,
    RATIO,
    SECONDS,
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
from vocabulary import (
    SERIES,
    STATE_MAPPINGS,
    STORM_RATIO,
    kvwatch_links,
    links,
    selector,
    state_changes,
    state_number,
    to_kvwatch,
    watch_variables,
)

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
    known = f"kvwatch_state{selector()}"
    of_target, of_model = (f"kvwatch_state{selector(*_LABELS[:count])}" for count in (1, 2))
    variables = [
        *watch_variables(one=True),
        variable("target", "Target", f"label_values({known}, target)", every=False),
        variable("model_name", "Model", f"label_values({of_target}, model_name)", every=False),
        variable("engine", "Engine", f"label_values({of_model}, engine)", every=False),
        variable("vllm", "vLLM", f"label_values({vllm.PRESENT}, instance)", every=True),
    ]
    rows = [
        Row("Verdict", _verdict()),
        Row("The five lines: any one getting worse is a failure", _five_lines()),
        Row("KV cache", load.cache(_ENGINE)),
        Row("Queue and work", load.work(_ENGINE)),
        Row("Evidence", _evidence()),
        Row("vLLM's own numbers, where Prometheus scrapes vLLM too, by its namespace and pod", vllm.panels()),
    ]
    description = "One vLLM engine as kvwatch sees it: what holds it back, since when, and the numbers that decided."
    return dashboard(
        UID,
        TITLE,
        description,
        rows=rows,
        variables=variables,
        links=[*links(_FLEET_UID, _FLEET_TITLE), *kvwatch_links()],
        annotations=[state_changes(*_LABELS)],
    )


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


def _evidence() -> list[Panel]:
    return [
        state_timeline(
            "Alerts",
            "Alerts that kvwatch itself sees firing for this engine. Each has a heading in the runbook.",
            [Query(f"kvwatch_alert_active{_ENGINE}", "{{alert}} ({{severity}})")],
            mappings=value_mappings((0, "quiet", "green"), (1, "firing", "red")),
            width=12,
        ).linked(*to_kvwatch(SERIES, alert=True)),
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
