"""What kvwatch cannot see of an engine, and why: said on the page, so that silence is never taken for calm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kvwatch.model import Assessment, FailureReason, ScrapeFailure, Signals, TargetView


@dataclass(frozen=True, slots=True)
class BlindSpot:
    """What is not seen, and why or what would open our eyes."""

    what: str
    why: str


FAILURE_WORDS: Final[dict[FailureReason, str]] = {
    FailureReason.DNS: "its name does not resolve",
    FailureReason.CONNECT: "it refuses connections",
    FailureReason.RESET: "it broke the connection off",
    FailureReason.TIMEOUT: "it did not answer in time",
    FailureReason.TLS: "TLS failed",
    FailureReason.HTTP_STATUS: "it answered with an HTTP error",
    FailureReason.REDIRECT: "it redirected, which is not followed",
    FailureReason.TOO_LARGE: "its answer was too large",
    FailureReason.ENCODING: "its answer was not readable text",
    FailureReason.PARSE: "its answer was not in the exposition format",
    FailureReason.EMPTY: "its answer was empty",
    FailureReason.NOT_METRICS: "it answered with something that is not metrics",
    FailureReason.NO_VLLM_METRICS: "it serves metrics, but none of vLLM's",
    FailureReason.STATS_DISABLED: "vLLM runs with --disable-log-stats",
    FailureReason.INTERNAL: "kvwatch itself failed; the reason is in its log",
}

_NO_OBSERVATION: Final = "Nothing was observed in the window, or this vLLM does not export the histogram."
_MISSING: Final[tuple[tuple[Callable[[Signals], object], BlindSpot], ...]] = (
    (
        lambda signals: signals.kv_usage,
        BlindSpot("KV cache usage", "vLLM reports none, or a number that cannot be: negative or not a number."),
    ),
    (
        lambda signals: signals.capacity_tokens,
        BlindSpot(
            "Size of the KV cache", "vllm:cache_config_info does not say it. Give kv_cache_tokens for this target; the startup log has it."
        ),
    ),
    (
        lambda signals: signals.slow.preemptions,
        BlindSpot("Preemptions", "There is no increase of vllm:num_preemptions over the window yet, or this vLLM does not export it."),
    ),
    (
        lambda signals: signals.recent.deferred,
        BlindSpot("Why requests wait", "vLLM before 0.20 does not tell a queue for capacity from one for remote cache, LoRA or grammar."),
    ),
    (lambda signals: signals.time_to_first_token, BlindSpot("Time to first token", _NO_OBSERVATION)),
    (lambda signals: signals.inter_token_latency, BlindSpot("Inter-token latency", _NO_OBSERVATION)),
    (lambda signals: signals.e2e_latency, BlindSpot("End-to-end latency", _NO_OBSERVATION)),
    (
        lambda signals: signals.process_cpu_ratio,
        BlindSpot(
            "CPU of the API server",
            "There is no increase of process_cpu_seconds_total yet, or it is missing, as it is with several API server processes.",
        ),
    ),
    (
        lambda signals: signals.gpu_utilization,
        BlindSpot("GPU utilisation", "vLLM does not export it. Give gpu.url to read it from a GPU exporter."),
    ),
)

ALWAYS: Final = (
    BlindSpot("An engine that froze while idle", "It shows the same numbers as an idle one; only work that does not move gives it away."),
    BlindSpot("Requests still in the API server", "vLLM counts a request only once the engine has it."),
    BlindSpot("Preemptions of the last moments", "vLLM counts a preemption when the preempted request next gives out a token."),
)
"""What no vLLM shows."""


def failure_in_words(failure: ScrapeFailure) -> str:
    """Why the target could not be read, for a person."""
    return f"{FAILURE_WORDS[failure.reason]} ({failure.detail})" if failure.detail else FAILURE_WORDS[failure.reason]


def blind_spots(view: TargetView, assessment: Assessment) -> Iterator[BlindSpot]:
    """What is hidden of this engine right now, the most important first. ``view`` is the one shown, see `freshness.as_of`."""
    if view.failure is not None:
        yield BlindSpot("The engine", f"The last poll brought nothing: {failure_in_words(view.failure)}.")
    if assessment.signals is None:
        if view.failure is None:
            yield BlindSpot("Every number", "There are not enough fresh polls to say anything.")
        return
    if assessment.baseline is not None and assessment.baseline.refusals:
        yield BlindSpot("The baseline", f"Not compared: {'; '.join(assessment.baseline.refusals)}.")
    for read, spot in _MISSING:
        if read(assessment.signals) is None:
            yield spot
