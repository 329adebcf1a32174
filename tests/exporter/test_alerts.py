from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.alerts.definitions import DEFINITIONS
from kvwatch.alerts.evaluation import EngineAlerts, TargetAlerts
from kvwatch.config.policy import Objectives, Policy
from kvwatch.model import (
    CAUSES,
    Alert,
    Cause,
    EngineId,
    FailureReason,
    Quantiles,
    ScrapeFailure,
    Severity,
    Signals,
    Verdict,
    Window,
)

ENGINE = EngineId(model_name="demo-8b", engine="0")
STATE_OF = {cause: state for state, causes in CAUSES.items() for cause in causes}
OBJECTIVES = Policy(objectives=Objectives(time_to_first_token=2.0, inter_token_latency=0.1, e2e_request_latency=30.0))


def verdict(cause: Cause, *evidence: str) -> Verdict:
    return Verdict(engine=ENGINE, state=STATE_OF[cause], cause=cause, evidence=evidence, since=0.0)


def signals(*, slow: float | None = 0.0, fast: float | None = 0.0, preemptions: float | None = 0.0, **others: object) -> Signals:
    base = Signals(
        at=0.0,
        recent=Window(seconds=15.0, samples=4),
        fast=Window(seconds=30.0, samples=7, preemption_ratio=fast, preemptions=preemptions),
        slow=Window(seconds=120.0, samples=25, preemption_ratio=slow, preemptions=preemptions),
    )
    return replace(base, **others)


def p95(seconds: float) -> Quantiles:
    return Quantiles(p50=seconds / 2, p95=seconds, p99=seconds * 2, mean=None, count=50.0)


def names(alerts: tuple[Alert, ...]) -> set[str]:
    return {alert.name for alert in alerts}


CALM = (verdict(Cause.OK), signals())
PREEMPTING = replace(verdict(Cause.PREEMPTING, "12 preemptions in 15 s"), storm=True)
STORM = (PREEMPTING, signals(slow=0.4, fast=0.5, preemptions=48.0))
DIP = (replace(PREEMPTING, storm=False), signals(slow=0.4, fast=0.05, preemptions=40.0))
LOST = (verdict(Cause.UNREACHABLE), None)


@pytest.mark.parametrize(("found", "pages"), [(True, True), (False, False), (None, False)])
def test_the_page_is_what_the_classifier_found(found: bool | None, pages: bool) -> None:
    fired = EngineAlerts(Policy()).update(0.0, replace(verdict(Cause.PREEMPTING), storm=found), signals())
    assert ("PreemptionStorm" in names(fired)) is pages


@pytest.mark.parametrize("well", [Cause.OK, Cause.IDLE, Cause.KV_HIGH])
def test_a_page_ends_at_once_where_the_engine_is_well(well: Cause) -> None:
    alerts = EngineAlerts(Policy())
    assert names(alerts.update(0.0, *STORM)) == {"PreemptionStorm"}
    assert alerts.update(5.0, verdict(well), signals()) == ()


def test_a_storm_is_critical_names_engine_evidence_and_first_step_and_keeps_its_start() -> None:
    alerts = EngineAlerts(Policy())
    numbers = signals(slow=0.4, fast=0.5, preemptions=48.0, running=23.0, waiting=9.0, kv_usage=0.98, sustainable_sequences=11)
    alerts.update(0.0, *CALM)
    alerts.update(5.0, replace(verdict(Cause.PREEMPTING), storm=True), numbers)
    (storm,) = alerts.update(10.0, replace(verdict(Cause.PREEMPTING), storm=True), numbers)
    assert storm == Alert(
        name="PreemptionStorm",
        severity=Severity.CRITICAL,
        since=5.0,
        summary="vLLM throws running requests off the GPU and computes them again.",
        description="Engine 0 of demo-8b (kv_bound, preempting): 48 preemptions in 120 s, 40% of the requests that left the running batch; "
        "48 preemptions in 30 s, 50% of the requests that left the running batch (running 23, waiting 9, cache 98%). "
        "First: let fewer requests in: limit concurrency at the proxy to 11, which the cache holds with headroom, "
        "then set --max-num-seqs as kvwatch advises.",
    )


def test_a_storm_seen_for_seconds_only_is_told_once_and_not_once_per_window() -> None:
    numbers = signals(slow=0.4, fast=0.4, preemptions=9.0)
    young = replace(numbers, slow=replace(numbers.slow, seconds=10.0), fast=replace(numbers.fast, seconds=10.0))
    (storm,) = EngineAlerts(Policy()).update(0.0, PREEMPTING, young)
    assert storm.description.count("preemptions in 10 s") == 1


def test_a_storm_ends_fifteen_seconds_after_the_first_scrape_that_says_so() -> None:
    alerts = EngineAlerts(Policy())
    (storm,) = alerts.update(0.0, *STORM)
    assert alerts.update(5.0, *DIP) == (storm,)
    assert alerts.update(19.9, *DIP) == (storm,)
    assert alerts.update(20.0, *DIP) == ()


def test_a_storm_that_dips_below_its_ratio_for_ten_seconds_goes_on() -> None:
    alerts = EngineAlerts(Policy())
    for at, said in ((0.0, STORM), (5.0, DIP), (10.0, DIP), (15.0, STORM), (20.0, DIP), (30.0, DIP)):
        assert [alert.since for alert in alerts.update(at, *said)] == [0.0]


def test_a_warning_that_dips_while_firing_does_not_wait_again() -> None:
    alerts = EngineAlerts(Policy())
    bound = (verdict(Cause.ADMISSION), signals())
    for at, said, fires in ((0.0, bound, False), (120.0, bound, True), (125.0, CALM, True), (135.0, bound, True), (200.0, bound, True)):
        assert (names(alerts.update(at, *said)) == {"KVBound"}) is fires


def test_failed_scrapes_do_not_end_a_storm_for_a_minute() -> None:
    alerts = EngineAlerts(Policy())
    (before,) = alerts.update(100.0, *STORM)
    assert alerts.update(105.0, *LOST) == (before,)
    assert alerts.update(160.0, *LOST) == (before,)
    assert alerts.update(165.0, *LOST) == ()
    assert alerts.update(170.0, *LOST) == ()


def test_a_storm_that_comes_back_is_a_new_one() -> None:
    alerts = EngineAlerts(Policy())
    alerts.update(0.0, *STORM)
    alerts.update(5.0, *CALM)
    alerts.update(20.0, *CALM)
    assert [alert.since for alert in alerts.update(25.0, *STORM)] == [25.0]


def test_a_failed_scrape_never_starts_an_alert_and_the_waiting_begins_again_after_it() -> None:
    alerts = EngineAlerts(Policy())
    alerts.update(0.0, verdict(Cause.ADMISSION), signals())
    assert alerts.update(120.0, *LOST) == ()
    assert alerts.update(125.0, verdict(Cause.ADMISSION), signals()) == ()
    assert alerts.update(244.0, verdict(Cause.ADMISSION), signals()) == ()
    assert names(alerts.update(245.0, verdict(Cause.ADMISSION), signals())) == {"KVBound"}


KV_TOO_SMALL = signals(demand_ratio=1.2)
SLOW_FIRST_TOKEN = signals(time_to_first_token=p95(2.1))


@pytest.mark.parametrize(
    ("cause", "numbers", "name", "after"),
    [
        pytest.param(Cause.STALLED, signals(), "EngineStalled", 60.0, id="stalled"),
        pytest.param(Cause.PREEMPTING, signals(), "KVBound", 120.0, id="preempting"),
        pytest.param(Cause.ADMISSION, signals(), "KVBound", 120.0, id="admission"),
        pytest.param(Cause.KV_HIGH, signals(), "KVScaleOut", 900.0, id="kv_high"),
        pytest.param(Cause.OK, KV_TOO_SMALL, "KVScaleOut", 900.0, id="demand above one"),
        pytest.param(Cause.SEQUENCE_SLOTS, signals(), "ComputeBound", 300.0, id="sequence_slots"),
        pytest.param(Cause.STEP_BUDGET, signals(), "ComputeBound", 300.0, id="step_budget"),
        pytest.param(Cause.COMPUTE, signals(), "ComputeBound", 300.0, id="compute"),
        pytest.param(Cause.FRONTEND, signals(), "ComputeBound", 300.0, id="frontend"),
        pytest.param(Cause.DEFERRED, signals(), "ComputeBound", 300.0, id="deferred"),
        pytest.param(Cause.OK, SLOW_FIRST_TOKEN, "LatencyObjectiveMissed", 300.0, id="time to first token"),
        pytest.param(Cause.OK, signals(inter_token_latency=p95(0.11)), "LatencyObjectiveMissed", 300.0, id="inter-token latency"),
        pytest.param(Cause.OK, signals(e2e_latency=p95(31.0)), "LatencyObjectiveMissed", 300.0, id="end-to-end latency"),
        pytest.param(Cause.WARMING_UP, None, "WatcherBlind", 300.0, id="warming_up"),
        pytest.param(Cause.STALE, None, "WatcherBlind", 300.0, id="stale"),
        pytest.param(Cause.NO_VLLM_METRICS, None, "WatcherBlind", 300.0, id="no_vllm_metrics"),
        pytest.param(Cause.STATS_DISABLED, None, "WatcherBlind", 300.0, id="stats_disabled"),
        pytest.param(Cause.AMBIGUOUS, signals(), "WatcherBlind", 300.0, id="ambiguous"),
    ],
)
def test_an_alert_fires_when_its_condition_has_held_for_its_time_and_not_before(
    cause: Cause, numbers: Signals | None, name: str, after: float
) -> None:
    alerts = EngineAlerts(OBJECTIVES)
    said = verdict(cause, "seen it")
    assert alerts.update(1000.0, said, numbers) == ()
    assert alerts.update(1000.0 + after - 0.1, said, numbers) == ()
    (fired,) = alerts.update(1000.0 + after, said, numbers)
    assert (fired.name, fired.since) == (name, 1000.0 + after)
    assert fired.description.startswith("Engine 0 of demo-8b (")
    assert " First: " in fired.description
    assert fired.severity is (Severity.CRITICAL if name == "EngineStalled" else Severity.WARNING)


@pytest.mark.parametrize(
    ("cause", "numbers"),
    [
        pytest.param(Cause.OK, signals(demand_ratio=1.0, time_to_first_token=p95(2.0)), id="demand and latency exactly at the limit"),
        pytest.param(Cause.IDLE, signals(), id="idle"),
        pytest.param(Cause.ASLEEP, None, id="asleep on purpose"),
        pytest.param(Cause.UNREACHABLE, None, id="unreachable is the target's alert"),
    ],
)
def test_nothing_fires_however_long_it_lasts(cause: Cause, numbers: Signals | None) -> None:
    alerts = EngineAlerts(OBJECTIVES)
    for at in range(0, 7200, 60):
        assert alerts.update(float(at), verdict(cause), numbers) == ()


def test_a_break_starts_the_waiting_time_again() -> None:
    alerts = EngineAlerts(Policy())
    alerts.update(0.0, verdict(Cause.ADMISSION), signals())
    alerts.update(100.0, *CALM)
    assert alerts.update(130.0, verdict(Cause.ADMISSION), signals()) == ()
    assert names(alerts.update(250.0, verdict(Cause.ADMISSION), signals())) == {"KVBound"}


def test_no_objective_no_latency_alert() -> None:
    alerts = EngineAlerts(Policy())
    slow = signals(time_to_first_token=p95(60.0), inter_token_latency=p95(5.0), e2e_latency=p95(600.0))
    for at in (0.0, 300.0, 600.0):
        assert alerts.update(at, verdict(Cause.OK), slow) == ()


def test_a_missed_objective_is_told_with_the_number_and_the_objective() -> None:
    alerts = EngineAlerts(OBJECTIVES)
    alerts.update(0.0, verdict(Cause.OK), SLOW_FIRST_TOKEN)
    (fired,) = alerts.update(300.0, verdict(Cause.OK), SLOW_FIRST_TOKEN)
    assert "time to first token 2.1 s at the 95th percentile (objective 2 s)" in fired.description


def test_scale_out_says_how_many_replicas() -> None:
    alerts = EngineAlerts(Policy())
    alerts.update(0.0, verdict(Cause.ADMISSION), signals(demand_ratio=2.3))
    fired = {alert.name: alert for alert in alerts.update(900.0, verdict(Cause.ADMISSION), signals(demand_ratio=2.3))}
    assert "needs 2.30 times the KV cache" in fired["KVScaleOut"].description
    assert "from 1 replica to 3" in fired["KVScaleOut"].description


@pytest.mark.parametrize("reason", list(FailureReason))
def test_target_down_after_five_minutes_unless_the_server_answers_without_vllm_series(reason: FailureReason) -> None:
    answers = reason in {FailureReason.NO_VLLM_METRICS, FailureReason.STATS_DISABLED}
    alerts = TargetAlerts()
    failure = ScrapeFailure(at=0.0, reason=reason, detail="what the peer said")
    assert alerts.update(0.0, failure) == ()
    assert alerts.update(299.0, failure) == ()
    fired = alerts.update(300.0, failure)
    assert names(fired) == (set() if answers else {"TargetDown"})
    assert all(f"({reason}): what the peer said" in alert.description for alert in fired)


def test_target_down_ends_with_good_scrapes() -> None:
    alerts = TargetAlerts()
    failure = ScrapeFailure(at=0.0, reason=FailureReason.CONNECT, detail="refused")
    alerts.update(0.0, failure)
    assert names(alerts.update(300.0, failure)) == {"TargetDown"}
    assert names(alerts.update(305.0, None)) == {"TargetDown"}
    assert alerts.update(320.0, None) == ()
    assert alerts.update(325.0, failure) == ()


def test_only_the_storm_is_p1_and_only_two_alerts_are_pages() -> None:
    assert {name: dict(alert.labels) for name, alert in DEFINITIONS.items() if alert.labels} == {"PreemptionStorm": {"priority": "P1"}}
    assert {name for name, alert in DEFINITIONS.items() if alert.severity is Severity.CRITICAL} == {"PreemptionStorm", "EngineStalled"}
