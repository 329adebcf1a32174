"""The fleet: who is bound, why, and whether to scale."""

from __future__ import annotations

from typing import Final

import engine
from panels import (
    COUNT,
    RATIO,
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
    variable,
)
from vocabulary import (
    BY_ENGINE,
    KV_WATERMARK,
    ROW,
    SERIES,
    STATE_MAPPINGS,
    STORM_RATIO,
    links,
    selector,
    state_changes,
    state_number,
    to_engine,
    to_kvwatch,
    watch_variables,
)

UID: Final = "kvwatch-fleet"
TITLE: Final = "kvwatch / Fleet"
_MODEL: Final = 'model_name=~"$model_name"'
_FLEET: Final = selector(_MODEL)
_SLOW: Final = selector(_MODEL, 'window="slow"')
_BOUND_STATES: Final = selector(_MODEL, 'state=~"kv_bound|compute_bound"')
_TROUBLE: Final = selector(_MODEL, 'cause!~"ok|idle|kv_high"')
_CRITICAL: Final = selector('severity="critical"')
_FROM_SERIES: Final = (to_engine(engine.UID, SERIES), *to_kvwatch(SERIES))
_FROM_ROW: Final = (to_engine(engine.UID, ROW), *to_kvwatch(ROW))
_ENGINE_NAME: Final = "{{target}} {{model_name}}/{{engine}} {{instance}}"


def build() -> Json:
    """The dashboard."""
    known = f"kvwatch_state{selector()}"
    variables = [*watch_variables(one=False), variable("model_name", "Model", f"label_values({known}, model_name)", every=True)]
    rows = [Row("Now", _now()), Row("Who is bound, and why", _bound()), Row("Capacity", _capacity()), Row("The watch itself", _watch())]
    description = "Every vLLM engine that kvwatch watches: its state, what holds it back, and whether the fleet needs another replica."
    return dashboard(
        UID, TITLE, description, rows=rows, variables=variables, links=links(engine.UID, engine.TITLE), annotations=[state_changes(_MODEL)]
    )


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
            "Alerts of severity critical that kvwatch itself sees firing. Below they are listed.",
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
        ).linked(*_FROM_SERIES),
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
        ).linked(*_FROM_ROW),
        table(
            "Alerts firing now",
            "What kvwatch itself sees firing. A link leads to the heading of the alert in the runbook.",
            [("Firing", Query(f"kvwatch_alert_active{selector()} == 1"), COUNT)],
            hide=("job", "Value"),
        ).linked(to_engine(engine.UID, ROW), *to_kvwatch(ROW, alert=True)),
        timeseries(
            "Preemption ratio by engine",
            "Of the requests that left the running batch in the slow window (2 min), the share that was preempted. "
            "The line is where it pages.",
            [Query(f"kvwatch_preemption_ratio{_SLOW}", _ENGINE_NAME)],
            RATIO,
            top=1,
            limit=STORM_RATIO,
        ).linked(*_FROM_SERIES),
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
        ).linked(*_FROM_SERIES),
        timeseries(
            "Peak KV usage by engine",
            "The highest KV cache usage of the last 30 s. The mean hides storms: every preemption frees blocks. The line is the watermark.",
            [Query(f"kvwatch_kv_cache_usage_peak_ratio{_FLEET}", _ENGINE_NAME)],
            RATIO,
            top=1,
            limit=KV_WATERMARK,
        ).linked(*_FROM_SERIES),
    ]


def _capacity() -> list[Panel]:
    return [
        timeseries(
            "KV demand by engine",
            "(running + waiting) x tokens per sequence / pool. Above 1 the requests there are do not fit: add a replica.",
            [Query(f"kvwatch_kv_demand_ratio{_FLEET}", _ENGINE_NAME)],
            RATIO,
            limit=1,
        ).linked(*_FROM_SERIES),
        timeseries(
            "KV tokens by model",
            "The pools of all engines of a model, and what is free in them. Free space in one engine does not help another.",
            [
                Query(f"sum by (model_name) (kvwatch_kv_capacity_tokens{_FLEET})", "{{model_name}} capacity"),
                Query(f"sum by (model_name) (kvwatch_kv_free_tokens{_FLEET})", "{{model_name}} free"),
            ],
            TOKENS,
        ),
        timeseries(
            "Imbalance",
            "The demand of the fullest engine by the mean of all of them: 1 is even. Between the engines of a model the router is asked, "
            "between the ranks of one server vLLM's own spreading is.",
            [
                Query(_uneven("model_name"), "engines of {{model_name}}"),
                Query(_uneven("instance, target, model_name"), "ranks of {{target}}"),
            ],
            COUNT,
            limit=2,
        ),
        timeseries(
            "Tokens generated by model",
            "By all engines of a model together, per second.",
            [Query(f"sum by (model_name) (kvwatch_generation_tokens_per_second{_FLEET})", "{{model_name}}")],
            TOKENS_PER_SECOND,
        ),
    ]


def _uneven(by: str) -> str:
    demand = f"kvwatch_kv_demand_ratio{_FLEET}"
    return f"max by ({by}) ({demand}) / (avg by ({by}) ({demand}) > 0)"


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
