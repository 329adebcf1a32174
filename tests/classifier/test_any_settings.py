"""Any permitted setting and any numbers: nothing escapes the classifier, and no page stands beside another state."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvwatch.assess import Judge
from kvwatch.config.policy import KnownConfig, Policy, Thresholds, Windows
from kvwatch.model import CAUSES, Cause, EngineConfig, EngineId, FailureReason, Scrape, ScrapeFailure, Snapshot, State
from kvwatch.poller import snapshot as snapshots

ENGINE = EngineId("demo-8b", "0")
COUNTS = ("preemptions", "finished", "generation_tokens", "prompt_tokens", "steps", "step_tokens", "prefix_queries", "prefix_hits")
durations = st.sampled_from((0.1, 1.0, 5.0, 29.0, 60.0, 3600.0))
MOST = snapshots.MOST
"""The largest count that enters: the poller takes a larger one for absent ."""
huge = st.sampled_from((0.0, 1.0, 3.0, 50.0, 1e12, MOST))


@st.composite
def policies(draw):
    fast = draw(durations)
    return Policy(
        window=Windows(fast=fast, slow=fast * draw(st.sampled_from((1.01, 4.0, 100.0)))),
        thresholds=Thresholds(
            storm_ratio=draw(st.sampled_from((0.0, 0.1, 1.0))),
            storm_min_preemptions=draw(st.integers(1, 6)),
            stall=draw(durations),
            silence=draw(durations),
        ),
    )


@st.composite
def events(draw):
    """Seconds to the next poll, and what it finds; the counters by how much they grow."""
    fields = {name: draw(huge | st.none()) for name in ("running", "waiting", "waiting_deferred")}
    fields["kv_usage"] = draw(st.sampled_from((None, 0.0, 0.3, 0.95, 1.0)))
    growth = {name: draw(huge | st.none()) for name in COUNTS}
    return (
        draw(st.sampled_from((0.0, 0.5, 1.0, 1.0, 5.0, 300.0))),
        draw(st.booleans()),
        fields,
        growth,
        draw(st.sampled_from((0, 0, 0, -50, 50))),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policy=policies(), interval=durations, known=st.sampled_from((None, 8)), polls=st.lists(events(), min_size=2, max_size=25))
def test_any_permitted_settings_and_any_numbers_give_a_verdict(policy, interval, known, polls):
    judge = Judge(policy, KnownConfig(max_num_seqs=known), interval)
    at, start, totals = 0.0, 1000.0, dict.fromkeys(COUNTS, 0.0)
    for pause, lost, fields, growth, moved in polls:
        at, start = at + pause * interval, start + moved
        totals = {name: min(MOST, totals[name] + (growth[name] or 0.0)) for name in COUNTS}
        counters = {name: None if growth[name] is None else totals[name] for name in COUNTS}
        snapshot = Snapshot(ENGINE, at, config=EngineConfig(kv_cache_size_tokens=5120), **{**fields, **counters})
        found = (
            judge.failed(ScrapeFailure(at, FailureReason.TIMEOUT, "as told"))
            if lost
            else judge.scraped(Scrape(at, (snapshot,), unix=1e9 + at, process_start_time=start, process_cpu_seconds=totals["steps"]))
        )
        for said in found.assessments:
            verdict, firing = said.verdict, {alert.name for alert in said.alerts}
            assert verdict.cause in CAUSES[verdict.state]
            assert not verdict.storm or verdict.state is State.KV_BOUND
            assert verdict.state is not State.HEALTHY or firing.isdisjoint({"PreemptionStorm", "EngineStalled"})
            assert "EngineStalled" not in firing or verdict.cause is Cause.STALLED or verdict.state is State.UNKNOWN
            assert all(text not in line for line in verdict.evidence for text in ("nan", "inf ", "inf%"))
