"""The fleet: who is bound, why, and whether to scale."""

from __future__ import annotations

from typing import Final

import engine
from panels import COUNT, RATIO, TOKENS, Json, Panel, Query, Row, dashboard, stat, state_timeline, steps, table, timeseries, variable
from vocabulary import BY_ENGINE, KV_WATERMARK, STATE_MAPPINGS, STORM_RATIO, links, selector, state_number

UID: Final = "kvwatch-fleet"
TITLE: Final = "kvwatch / Fleet"
_MODEL: Final = 'model_name=~"$model_name"'
_FLEET: Final = selector(_MODEL)
_SLOW: Final = selector(_MODEL, 'window="slow"')
_BOUND_STATES: Final = selector(_MODEL, 'state=~"kv_bound|compute_bound"')
_TROUBLE: Final = selector(_MODEL, 'cause!~"ok|idle|kv_high"')
_CRITICAL: Final = selector('severity="critical"')
_ENGINE_NAME: Final = "{{target}} {{model_name}}/{{engine}} {{instance}}"


def build() -> Json:
    """The dashboard."""
    variables = [
        variable("job", "Job", "label_values(kvwatch_build_info, job)", every=True),
        variable("instance", "kvwatch", 'label_values(kvwatch_build_info{job=~"$job"}, instance)', every=True),
        variable("model_name", "Model", 'label_values(kvwatch_state{job=~"$job", instance=~"$instance"}, model_name)', every=True),
    ]
    rows = [Row("Now", _now()), Row("Who is bound, and why", _bound()), Row("Capacity", _capacity()), Row("The watch itself", _watch())]
    description = "Every vLLM engine that kvwatch watches: its state, what holds it back, and whether the fleet needs another replica."
    return dashboard(UID, TITLE, description, rows=rows, variables=variables, links=links(engine.UID, engine.TITLE))


def _now() -> list[Panel]:
    return [
        stat("Engines", "Engines kvwatch knows.", Query(f"count(sum by ({BY_ENGINE}) (kvwatch_state{_FLEET}))"), COUNT),
        stat(
            "Bound engines",
            "Engines that the KV cache or the compute side holds back now.",
            Query(f"sum(kvwatch_state{_BOUND_STATES})"),
            COUNT,
            thresholds=steps(("green", None), ("orange", 1)),
        ),
        stat(
            "Critical alerts",
            "Alerts of severity critical that kvwatch itself sees firing. Each has a heading in the runbook.",
            Query(f"sum(kvwatch_alert_active{_CRITICAL})"),
            COUNT,
            thresholds=steps(("green", None), ("red", 1)),
        ),
        stat(
            "Worst preemption ratio",
            "The largest share of the requests leaving a running batch that were preempted, over the slow window (2 min). "
            "Above 10 % it pages.",
            Query(f"max(kvwatch_preemption_ratio{_SLOW})"),
            RATIO,
            thresholds=steps(("green", None), ("orange", 0.02), ("red", STORM_RATIO)),
        ),
        stat(
            "Replicas wanted",
            "Sum of the KV demand of all engines / 0.8, rounded up: what the autoscaling examples scale to.",
            Query(f"ceil(sum(kvwatch_kv_demand_ratio{_FLEET}) / 0.8)"),
            COUNT,
        ),
        stat(
            "Targets down",
            "vLLM /metrics URLs whose last poll failed.",
            Query(f"count(kvwatch_target_up{selector()}) - sum(kvwatch_target_up{selector()})"),
            COUNT,
            thresholds=steps(("green", None), ("red", 1)),
        ),
    ]


def _bound() -> list[Panel]:
    def column(metric: str) -> Query:
        return Query(f"{metric} * on ({BY_ENGINE}) group_left (cause) (kvwatch_cause{_TROUBLE} == 1)")

    return [
        state_timeline(
            "State by engine",
            "Green: nothing holds it back. Orange: the compute side or the scheduler. Red: the KV cache. Grey: kvwatch cannot say.",
            [Query(state_number(_MODEL), _ENGINE_NAME)],
            mappings=STATE_MAPPINGS,
        ),
        table(
            "Bound or unknown engines now",
            "The engines that are not healthy, with the cause and the numbers that go with it. The runbook has a heading per alert.",
            [
                ("Preemption ratio", column(f"kvwatch_preemption_ratio{_SLOW}"), RATIO),
                ("KV usage peak", column(f"kvwatch_kv_cache_usage_peak_ratio{_FLEET}"), RATIO),
                ("KV demand", column(f"kvwatch_kv_demand_ratio{_FLEET}"), RATIO),
                ("Running", column(f"kvwatch_requests_running{_FLEET}"), COUNT),
                ("Waiting", column(f"kvwatch_requests_waiting{_FLEET}"), COUNT),
                ("Sustainable sequences", column(f"kvwatch_sustainable_sequences{_FLEET}"), COUNT),
            ],
            hide=("job", "window"),
        ),
        timeseries(
            "Preemption ratio by engine",
            "Of the requests that left the running batch in the slow window (2 min), the share that was preempted. "
            "The line is where it pages.",
            [Query(f"kvwatch_preemption_ratio{_SLOW}", _ENGINE_NAME)],
            RATIO,
            top=1,
            limit=STORM_RATIO,
        ),
        timeseries(
            "Engine time by state",
            "Share of all engines' time spent in each state.",
            [
                Query(
                    f"sum by (state) (rate(kvwatch_state_seconds_total{_FLEET}[$__rate_interval]))"
                    f" / scalar(sum(rate(kvwatch_state_seconds_total{_FLEET}[$__rate_interval])))",
                    "{{state}}",
                )
            ],
            RATIO,
            top=1,
        ),
        timeseries(
            "Waiting requests by engine",
            "Requests in the queue of each engine.",
            [Query(f"kvwatch_requests_waiting{_FLEET}", _ENGINE_NAME)],
            COUNT,
        ),
        timeseries(
            "Peak KV usage by engine",
            "The highest KV cache usage of the last 30 s. The mean hides storms: every preemption frees blocks. The line is the watermark.",
            [Query(f"kvwatch_kv_cache_usage_peak_ratio{_FLEET}", _ENGINE_NAME)],
            RATIO,
            top=1,
            limit=KV_WATERMARK,
        ),
    ]


def _capacity() -> list[Panel]:
    return [
        timeseries(
            "KV demand by engine",
            "(running + waiting) x tokens per sequence / pool. Above 1 the requests there are do not fit: add a replica.",
            [Query(f"kvwatch_kv_demand_ratio{_FLEET}", _ENGINE_NAME)],
            RATIO,
            limit=1,
        ),
        timeseries(
            "KV tokens by model",
            "The pools of all engines of a model, and what is free in them. Free space in one engine does not help another.",
            [
                Query(f"sum by (model_name) (kvwatch_kv_capacity_tokens{_FLEET})", "{{model_name}} capacity"),
                Query(f"sum by (model_name) (kvwatch_kv_free_tokens{_FLEET})", "{{model_name}} free"),
            ],
            TOKENS,
        ),
    ]


def _watch() -> list[Panel]:
    return [
        timeseries(
            "Failed polls by reason",
            "Polls of vLLM that gave no numbers, per second, by reason.",
            [
                Query(
                    f"sum by (reason) (rate(kvwatch_target_scrape_failures_total{selector()}[$__rate_interval])) > 0 or vector(0)",
                    "{{reason}}",
                )
            ],
            "cps",
        ),
        timeseries(
            "Age of what is shown",
            "Time since the last good poll of each target.",
            [Query(f"time() - kvwatch_last_successful_scrape_timestamp_seconds{selector()}", "{{target}} {{instance}}")],
            "s",
        ),
    ]
