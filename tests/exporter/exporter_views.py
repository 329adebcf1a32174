"""Hand-made views and a clock that stands still, shared by the exporter's tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvwatch.model import (
    Alert,
    Assessment,
    BaselineComparison,
    BaselineLine,
    Cause,
    Change,
    EngineId,
    FailureReason,
    GaugeStats,
    Quantiles,
    ScrapeFailure,
    Severity,
    Signals,
    State,
    TargetView,
    Verdict,
    Window,
)

NOW = 1000.0
UNIX = 1_800_000_000.0


@dataclass
class StillClock:
    """A clock that moves only when told."""

    now: float = NOW
    wall: float = UNIX

    def monotonic(self) -> float:
        return self.now

    def unix(self) -> float:
        return self.wall

    def step(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


def window(seconds: float, *, preemptions: float, ratio: float) -> Window:
    return Window(
        seconds=seconds,
        samples=int(seconds / 5) + 1,
        running=GaugeStats(mean=11.5, low=9.0, peak=14.0, last=12.0),
        waiting=GaugeStats(mean=6.0, low=4.0, peak=9.0, last=7.0),
        kv_usage=GaugeStats(mean=0.93, low=0.81, peak=0.9975, last=0.96),
        preemptions=preemptions,
        finished=15.0,
        generation_tokens=12_000.0,
        preemption_ratio=ratio,
    )


SIGNALS = Signals(
    at=NOW - 2.0,
    recent=window(15.0, preemptions=4.0, ratio=0.25),
    fast=window(30.0, preemptions=10.0, ratio=0.4),
    slow=window(120.0, preemptions=20.0, ratio=0.125),
    running=12.0,
    waiting=7.0,
    kv_usage=0.96,
    capacity_tokens=24_576,
    free_tokens=983.04,
    tokens_per_sequence=1720.0,
    next_prompt_tokens=1500.0,
    output_tokens=256.0,
    demand_ratio=1.33,
    sustainable_sequences=11,
    seconds_to_full=4.5,
    seconds_without_progress=2.5,
    generation_tokens_per_second=401.5,
    prompt_tokens_per_second=1210.0,
    recompute_ratio=0.18,
    time_to_first_token=Quantiles(p50=0.75, p95=7.5, p99=11.25, mean=2.0, count=15.0),
    inter_token_latency=Quantiles(p50=0.03, p95=0.075, p99=0.3, mean=0.04, count=12_000.0),
    e2e_latency=Quantiles(p50=9.0, p95=21.0, p99=28.5, mean=11.0, count=15.0),
)

STORM = Alert(
    name="PreemptionStorm",
    severity=Severity.CRITICAL,
    since=NOW - 40.0,
    summary="Requests are thrown off the GPU.",
    description="20 of 35 leaving requests were preempted.",
)

LOWER_SEQUENCES = Change(
    lever="--max-num-seqs",
    current="32",
    proposed="11",
    reason="24 576 KV tokens / 1 720 tokens per sequence, less 20 % headroom: 11",
    effect="Preemptions stop; waiting moves to the queue.",
    caution="Change nothing else, measure for ten minutes.",
)

STORMING = Assessment(
    verdict=Verdict(
        engine=EngineId(model_name="demo-8b", engine="0"),
        state=State.KV_BOUND,
        cause=Cause.PREEMPTING,
        evidence=("20 preemptions in 120 s", "KV cache peaked at 0.998"),
        since=NOW - 60.0,
    ),
    signals=SIGNALS,
    alerts=(STORM,),
    conditions={"PreemptionStorm": True, "KVBound": True, "WatcherBlind": False},
    advice=(LOWER_SEQUENCES,),
    state_seconds={State.HEALTHY: 500.0, State.KV_BOUND: 60.0, State.COMPUTE_BOUND: 0.0, State.UNKNOWN: 8.5},
    transitions=2,
    baseline=BaselineComparison(
        (BaselineLine("ttft", change=0.5, worse=True, words="time to first token, P95 1.20 s against 800 ms (+50.0 %)"),)
    ),
)

VIEW = TargetView(
    name="vllm-0",
    url="http://127.0.0.1:8000/metrics",
    interval=5.0,
    at=NOW - 2.0,
    last_success_at=NOW - 2.0,
    last_success_unix=UNIX - 2.0,
    scrape_seconds=0.004,
    conditions={"TargetDown": False},
    assessments=(STORMING,),
    sources={"kv_usage": "vllm:kv_cache_usage_perc", "running": "vllm:num_requests_running"},
)

UNPOLLED = TargetView(name="vllm-1", url="http://127.0.0.1:8001/metrics", interval=5.0, at=None)


def failed(view: TargetView = VIEW, *, reason: FailureReason = FailureReason.TIMEOUT, detail: str = "no answer within 4 s") -> TargetView:
    """The view after a poll that failed: engines known, nothing known of them."""
    at = view.at or NOW
    return replace(
        view,
        failure=ScrapeFailure(at=at, reason=reason, detail=detail),
        assessments=tuple(
            replace(
                known,
                verdict=replace(known.verdict, state=State.UNKNOWN, cause=Cause.UNREACHABLE, evidence=(detail,), since=at),
                signals=None,
                baseline=None,
                alerts=(),
                advice=(),
            )
            for known in view.assessments
        ),
    )
