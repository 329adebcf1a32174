"""When each alert holds. A condition answers ``None`` where its numbers are absent: no evidence is neither trouble nor calm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kvwatch.config.policy import Policy
from kvwatch.model import Cause, FailureReason, ScrapeFailure, Signals, State, Verdict

Condition = Callable[[Policy, Verdict, Signals | None], bool | None]


def storm(_policy: Policy, verdict: Verdict, _signals: Signals | None) -> bool | None:
    """The page: the classifier's own finding, so that it never stands beside another state."""
    return verdict.storm


def stalled(_policy: Policy, verdict: Verdict, _signals: Signals | None) -> bool | None:
    """Work and no token: the classifier's own patience comes before."""
    return None if verdict.state is State.UNKNOWN else verdict.cause is Cause.STALLED


def kv_bound(_policy: Policy, verdict: Verdict, _signals: Signals | None) -> bool | None:
    """The state of that name, whatever its cause."""
    return None if verdict.state is State.UNKNOWN else verdict.state is State.KV_BOUND


def scale_out(_policy: Policy, verdict: Verdict, signals: Signals | None) -> bool | None:
    """Cache above the watermark without harm yet, or more work than one cache holds."""
    if verdict.cause is Cause.KV_HIGH:
        return True
    if signals is not None and signals.demand_ratio is not None:
        return signals.demand_ratio > 1
    return None if verdict.state is State.UNKNOWN else False


def compute_bound(_policy: Policy, verdict: Verdict, _signals: Signals | None) -> bool | None:
    """The state of that name but for `stalled`, which pages by itself."""
    if verdict.state is State.UNKNOWN:
        return None
    return verdict.state is State.COMPUTE_BOUND and verdict.cause is not Cause.STALLED


def latencies(policy: Policy, signals: Signals | None) -> Iterator[tuple[str, float, float]]:
    """Name, 95th percentile over the slow window and objective, in seconds, of every latency that has both."""
    if signals is None:
        return
    for name, seen, objective in (
        ("time to first token", signals.time_to_first_token, policy.objectives.time_to_first_token),
        ("inter-token latency", signals.inter_token_latency, policy.objectives.inter_token_latency),
        ("end-to-end latency", signals.e2e_latency, policy.objectives.e2e_request_latency),
    ):
        if seen is not None and objective is not None:
            yield name, seen.p95, objective


def latency_missed(policy: Policy, _verdict: Verdict, signals: Signals | None) -> bool | None:
    """Any latency above its objective."""
    judged = [p95 > objective for _, p95, objective in latencies(policy, signals)]
    return any(judged) if judged else None


def blind(_policy: Policy, verdict: Verdict, _signals: Signals | None) -> bool | None:
    """Unknown, but for unreachable, which is `target_is_down`'s, and asleep, which is on purpose."""
    return verdict.state is State.UNKNOWN and verdict.cause not in (Cause.UNREACHABLE, Cause.ASLEEP)


_ANSWERED: Final = (FailureReason.NO_VLLM_METRICS, FailureReason.STATS_DISABLED)


def target_is_down(failure: ScrapeFailure) -> bool:
    """Whether the target gave no usable answer. One that answers without vLLM's series is up, and kvwatch is `blind`."""
    return failure.reason not in _ANSWERED
