"""Every family kvwatch derives from its targets: name, type, help, and for the plain gauges where the number comes from.

The names are a contract: rules, dashboards and users rely on them, and a change goes through the changelog. ``{fast}`` and
``{slow}`` in a help text stand for the configured windows. `kvwatch.exporter.metrics.telemetry` holds kvwatch's own activity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from kvwatch.alerts.times import EVIDENCE_SECONDS
from kvwatch.model import Quantiles, Signals

_ALONE: Final = "Do not sum or average over engines."


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family; a counter's ``name`` is written without ``_total``."""

    name: str
    kind: Literal["gauge", "counter", "summary"]
    help: str


@dataclass(frozen=True, slots=True)
class SignalGauge:
    """A gauge that is one number of the signals, absent where the number is ``None``."""

    family: Family
    read: Callable[[Signals], float | None]


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of a latency, absent where nothing was observed in the window.

    Its type is ``summary``, the one that may carry ``quantile``. ``_sum`` and ``_count`` are left out: they would have to count
    since the start, and vLLM's own histogram already does.
    """

    family: Family
    read: Callable[[Signals], Quantiles | None]


def _gauge(name: str, text: str) -> Family:
    return Family(f"kvwatch_{name}", "gauge", text)


def _counter(name: str, text: str) -> Family:
    return Family(f"kvwatch_{name}", "counter", text)


STATE: Final = _gauge(
    "state",
    "What holds the engine back: 1 for its state, 0 for the others. Exported without fresh evidence too, as unknown: "
    "healthy needs evidence.",
)
CAUSE: Final = _gauge("cause", "Why the engine is in its state: 1 for its cause, 0 for the others.")
STATE_SECONDS: Final = _counter("state_seconds", "Seconds kvwatch has seen the engine in each state.")
STATE_TRANSITIONS: Final = _counter("state_transitions", "State changes of the engine seen by kvwatch.")
PREEMPTION_RATIO: Final = _gauge(
    "preemption_ratio",
    "Share of the requests leaving the running batch that were preempted: preemptions / max(preemptions + finished, "
    f"mean running) over the window (fast {{fast}}, slow {{slow}}); from vllm:num_preemptions, "
    f"vllm:request_success and vllm:num_requests_running. {_ALONE}",
)
PREEMPTIONS: Final = _gauge(
    "preemptions",
    "Running requests preempted from the KV cache within the window (fast {fast}, slow {slow}); from vllm:num_preemptions, which vLLM "
    "counts late. A moving count: do not rate it.",
)
ALERT_ACTIVE: Final = _gauge(
    "alert_active", "1 while kvwatch's own alert fires, 0 while it is quiet; alerts about a target carry no engine."
)
ALERT_CONDITION: Final = _gauge(
    "alert_condition",
    f"1 while the condition of an alert holds, 0 while it does not; where polls are lost, as it was seen last, and 0 after "
    f"{EVIDENCE_SECONDS:.0f} s. The rules wait on it.",
)
RECOMMENDED_MAX_NUM_SEQS: Final = _gauge(
    "recommended_max_num_seqs", f"The --max-num-seqs kvwatch advises; there only while it advises a change of it. {_ALONE}"
)
BASELINE_CHANGE: Final = _gauge(
    "baseline_change_ratio",
    "How far a line of the engine is from the baseline that was configured, over the last ten minutes that were compared: a share of the "
    "baseline, and the difference for line preemption. Above 0 is more, be it better or worse. Absent while the loads differ; "
    f"/api/v1/status says why. {_ALONE}",
)
TARGET_UP: Final = _gauge("target_up", "1 if the last poll of the target's /metrics succeeded and is fresh, 0 otherwise.")
LAST_SUCCESS: Final = _gauge(
    "last_successful_scrape_timestamp_seconds", "When the target last answered with vLLM metrics, unix time; 0 while it never has."
)
SCRAPE_DURATION: Final = _gauge("target_scrape_duration_seconds", "Seconds the last finished poll of the target took.")
SIGNAL_SOURCE: Final = _gauge("signal_source_info", "Which of the target's metric names carries a signal; always 1.")
COLLECT_FAULTS: Final = _counter(
    "collect_faults", "Views left out of an exposition because of an error in kvwatch; always 0 in a sound build."
)

SIGNAL_GAUGES: Final = (
    SignalGauge(
        _gauge("kv_cache_usage_ratio", f"Share of the KV cache in use at the last poll, 0 to 1; from vllm:kv_cache_usage_perc. {_ALONE}"),
        lambda signals: signals.kv_usage,
    ),
    SignalGauge(
        _gauge(
            "kv_cache_usage_peak_ratio",
            f"Highest share of the KV cache in use at any poll of the fast window ({{fast}}); from vllm:kv_cache_usage_perc. {_ALONE}",
        ),
        lambda signals: None if signals.fast.kv_usage is None else signals.fast.kv_usage.peak,
    ),
    SignalGauge(
        _gauge("kv_capacity_tokens", "Tokens the engine's KV cache holds; from vllm:cache_config_info or the configuration."),
        lambda signals: signals.capacity_tokens,
    ),
    SignalGauge(
        _gauge("kv_free_tokens", "KV cache tokens not in use: capacity x (1 - usage)."),
        lambda signals: signals.free_tokens,
    ),
    SignalGauge(
        _gauge(
            "kv_tokens_per_sequence",
            "KV cache tokens a running sequence holds on average: usage x capacity / vllm:num_requests_running over the slow window "
            f"({{slow}}). {_ALONE}",
        ),
        lambda signals: signals.tokens_per_sequence,
    ),
    SignalGauge(
        _gauge(
            "kv_demand_ratio",
            f"(running + waiting) x tokens per sequence / capacity: above 1 the work at hand does not fit one replica's KV cache. {_ALONE}",
        ),
        lambda signals: signals.demand_ratio,
    ),
    SignalGauge(
        _gauge(
            "kv_seconds_to_full",
            f"Seconds until the KV cache is full at the fill rate of the fast window ({{fast}}); absent while it does not fill. {_ALONE}",
        ),
        lambda signals: signals.seconds_to_full,
    ),
    SignalGauge(
        _gauge(
            "seconds_without_progress",
            f"Seconds since a token came out or a prompt got further, while there was work; absent without work. {_ALONE}",
        ),
        lambda signals: signals.seconds_without_progress,
    ),
    SignalGauge(
        _gauge("sustainable_sequences", "Sequences that may run at once without preempting one another, by what the KV cache holds."),
        lambda signals: signals.sustainable_sequences,
    ),
    SignalGauge(
        _gauge("requests_running", "Requests in the running batch at the last poll; from vllm:num_requests_running."),
        lambda signals: signals.running,
    ),
    SignalGauge(
        _gauge("requests_waiting", "Requests waiting at the last poll, preempted ones among them; from vllm:num_requests_waiting."),
        lambda signals: signals.waiting,
    ),
    SignalGauge(
        _gauge("generation_tokens_per_second", "Tokens generated per second over the fast window ({fast}); from vllm:generation_tokens."),
        lambda signals: signals.generation_tokens_per_second,
    ),
    SignalGauge(
        _gauge(
            "prompt_tokens_per_second",
            "Prompt tokens taken in per second over the fast window ({fast}), cached ones included; from vllm:prompt_tokens.",
        ),
        lambda signals: signals.prompt_tokens_per_second,
    ),
    SignalGauge(
        _gauge(
            "recompute_ratio",
            "Estimate, not a measurement: share of the computed tokens that had been computed before and were thrown away by preemptions, "
            f"over the slow window ({{slow}}). "
            f"{_ALONE}",
        ),
        lambda signals: signals.recompute_ratio,
    ),
)

QUANTILES: Final = (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99"))
"""Label value and the field of `Quantiles` it is read from."""


def _latency(name: str, what: str) -> Family:
    return Family(
        f"kvwatch_{name}_seconds",
        "summary",
        f"{what} over the slow window ({{slow}}), estimated from the buckets of vllm:{name}_seconds. {_ALONE}",
    )


LATENCIES: Final = (
    Latency(_latency("time_to_first_token", "Time from arrival to the first token"), lambda signals: signals.time_to_first_token),
    Latency(_latency("inter_token_latency", "Time between two tokens of one request"), lambda signals: signals.inter_token_latency),
    Latency(
        _latency("e2e_request_latency", "Time from arrival to the last token of finished requests"), lambda signals: signals.e2e_latency
    ),
)

FAMILIES: Final = (
    STATE,
    CAUSE,
    STATE_SECONDS,
    STATE_TRANSITIONS,
    PREEMPTION_RATIO,
    PREEMPTIONS,
    *(gauge.family for gauge in SIGNAL_GAUGES),
    *(latency.family for latency in LATENCIES),
    ALERT_ACTIVE,
    ALERT_CONDITION,
    RECOMMENDED_MAX_NUM_SEQS,
    BASELINE_CHANGE,
    TARGET_UP,
    LAST_SUCCESS,
    SCRAPE_DURATION,
    SIGNAL_SOURCE,
    COLLECT_FAULTS,
)
"""In the order of the exposition."""


def label_value(text: str) -> str:
    """The text as it can be encoded: configuration from the environment may carry lone surrogates, and one would fail the whole scrape."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
