from __future__ import annotations

import random
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from kvwatch.alerts.definition import Facts
from kvwatch.alerts.evaluation import EngineAlerts, TargetAlerts
from kvwatch.alerts.registry import DEFINITIONS
from kvwatch.config.policy import Objectives, Policy
from kvwatch.model import (
    CAUSES,
    Alert,
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

ENGINE = EngineId(model_name="demo-8b", engine="0")
STATE_OF = {cause: state for state, causes in CAUSES.items() for cause in causes}
POLL = 5.0
OBJECTIVES = Policy(objectives=Objectives(time_to_first_token=2.0, inter_token_latency=0.1, e2e_request_latency=30.0))


def verdict(cause: Cause, *evidence: str) -> Verdict:
    return Verdict(engine=ENGINE, state=STATE_OF[cause], cause=cause, evidence=evidence, since=0.0)


def signals(*, slow: float | None = 0.0, fast: float | None = 0.0, preemptions: float | None = 0.0, **others: Any) -> Signals:
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


def held(alerts: EngineAlerts, seconds: float, *said: Any) -> tuple[Alert, ...]:
    """What fires after the same was said every 5 s for so long."""
    for at in range(0, int(seconds), 5):
        alerts.update(float(at), *said)
    return alerts.update(seconds, *said)


CALM = (verdict(Cause.OK), signals())
PREEMPTING = replace(verdict(Cause.PREEMPTING, "12 preemptions in 15 s"), storm=True)
STORM = (PREEMPTING, signals(slow=0.4, fast=0.5, preemptions=48.0))
DIP = (replace(PREEMPTING, storm=False), signals(slow=0.4, fast=0.05, preemptions=40.0))
LOST = (verdict(Cause.UNREACHABLE), None)


@pytest.mark.parametrize(("found", "pages"), [(True, True), (False, False), (None, False)])
def test_the_page_is_what_the_classifier_found(found: bool | None, pages: bool) -> None:
    fired = EngineAlerts(Policy(), POLL).update(0.0, replace(PREEMPTING, storm=found), signals())
    assert ("PreemptionStorm" in names(fired)) is pages


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause.state is not State.UNKNOWN])
def test_a_storm_never_stands_beside_a_state_that_says_something_else(cause: Cause) -> None:
    alerts = EngineAlerts(Policy(), POLL)
    assert names(alerts.update(0.0, *STORM)) == {"PreemptionStorm"}
    assert ("PreemptionStorm" in names(alerts.update(5.0, verdict(cause), signals()))) is (cause.state is State.KV_BOUND)


def test_a_storm_is_critical_names_engine_evidence_and_first_step_and_keeps_its_start() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    numbers = signals(slow=0.4, fast=0.5, preemptions=48.0, running=23.0, waiting=9.0, kv_usage=0.98, sustainable_sequences=11)
    alerts.update(0.0, *CALM)
    alerts.update(5.0, PREEMPTING, numbers)
    (storm,) = alerts.update(10.0, PREEMPTING, numbers)
    assert storm == Alert(
        name="PreemptionStorm",
        severity=Severity.CRITICAL,
        since=5.0,
        summary="vLLM throws running requests off the GPU and computes them again.",
        description="Engine 0 of demo-8b (kv_bound, preempting): 48 preemptions in 120 s, 40% of the requests that left the running batch; "
        "48 preemptions in 30 s, 50% of the requests that left the running batch (running 23, waiting 9, cache 98%). "
        "First: let fewer requests in: limit concurrency at the proxy to 11, as many as the cache holds, "
        "then --max-num-seqs to the same.",
    )


def test_a_storm_seen_for_seconds_only_is_told_once_and_not_once_per_window() -> None:
    numbers = signals(slow=0.4, fast=0.4, preemptions=9.0)
    young = replace(numbers, slow=replace(numbers.slow, seconds=10.0), fast=replace(numbers.fast, seconds=10.0))
    (storm,) = EngineAlerts(Policy(), POLL).update(0.0, PREEMPTING, young)
    assert storm.description.count("preemptions in 10 s") == 1


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (None, "running requests are preempted. First"),
        (0.4, "running requests are preempted, 40% of the requests that left the running batch. First"),
    ],
)
def test_a_storm_whose_preemptions_nobody_counts_states_no_count(share: float | None, said: str) -> None:
    numbers = signals(slow=share, fast=share, preemptions=None)
    (storm,) = EngineAlerts(Policy(), POLL).update(0.0, PREEMPTING, numbers)
    assert storm.description.startswith(f"Engine 0 of demo-8b (kv_bound, preempting): {said}")


@pytest.mark.parametrize(
    ("cause", "first"),
    [
        (Cause.PREEMPTING, "lower --max-num-seqs, for running requests are preempted and computed again"),
        (
            Cause.ADMISSION,
            "give the cache room: --gpu-memory-utilization up to 0.95 if nothing else uses the card, an fp8 KV dtype, or a replica",
        ),
    ],
)
def test_a_bound_cache_without_advice_says_what_helps_such_a_cause(cause: Cause, first: str) -> None:
    (fired,) = held(EngineAlerts(Policy(), POLL), 120.0, verdict(cause, "seen"), signals())
    assert (fired.name, fired.description) == ("KVBound", f"Engine 0 of demo-8b (kv_bound, {cause}): seen. First: {first}.")


def advice(lever: str, current: str | None, proposed: str | None) -> tuple[Change, ...]:
    return (Change(lever=lever, current=current, proposed=proposed, reason="why", effect="what it does", caution="what to beware of"),)


@pytest.mark.parametrize(
    ("given", "fits", "limit"),
    [
        pytest.param(advice("--max-num-seqs", "32", "11"), 11, "11, as many as the cache holds", id="a number is advised"),
        pytest.param(advice("replicas", "1", "2"), 11, "11, as many as the cache holds", id="something else is advised"),
        pytest.param((), None, "half of what runs now", id="no size is known"),
    ],
)
def test_a_storm_names_one_number_for_the_proxy_and_the_server(given: tuple[Change, ...], fits: int | None, limit: str) -> None:
    (storm,) = EngineAlerts(Policy(), POLL).update(0.0, PREEMPTING, replace(STORM[1], sustainable_sequences=fits), given)
    assert storm.description.endswith(f"limit concurrency at the proxy to {limit}, then --max-num-seqs to the same.")


@pytest.mark.parametrize(
    ("cause", "name", "after"),
    [(Cause.ADMISSION, "KVBound", 120.0), (Cause.SEQUENCE_SLOTS, "ComputeBound", 300.0)],
)
@pytest.mark.parametrize(
    ("given", "first"),
    [
        (advice("--max-num-seqs", "32", "11"), "First: --max-num-seqs 32 → 11."),
        (advice("--max-num-seqs", None, "11"), "First: --max-num-seqs 11."),
        (advice("look at the host", None, None), "First: look at the host: why."),
        (advice("replicas", "1", None), "First: replicas, 1 now: why."),
    ],
)
def test_a_warning_starts_with_the_first_piece_of_advice(
    cause: Cause, name: str, after: float, given: tuple[Change, ...], first: str
) -> None:
    (fired,) = held(EngineAlerts(Policy(), POLL), after, verdict(cause, "seen"), signals(), given)
    assert fired.name == name
    assert fired.description.endswith(first)


@pytest.mark.parametrize(
    ("cause", "first"),
    [
        (Cause.WARMING_UP, "see whether vLLM restarts in a loop"),
        (Cause.STALE, "see in vLLM's log whether this engine's process has died: its siblings answer, and it may still be sent work"),
        (Cause.NO_VLLM_METRICS, "check that the URL is vLLM's /metrics and not a proxy's or a router's"),
        (Cause.STATS_DISABLED, "start vLLM without --disable-log-stats"),
        (
            Cause.AMBIGUOUS,
            (
                "see whether several servers answer under this address; if it is one, compare its /metrics with the names in "
                "kvwatch_signal_source_info, for an upgrade of vLLM may have renamed some"
            ),
        ),
    ],
)
def test_blindness_says_what_to_look_at_for_each_of_its_causes(cause: Cause, first: str) -> None:
    (fired,) = held(
        EngineAlerts(Policy(), POLL), 300.0, verdict(cause, "seen"), signals(), advice("its levers are on the page", None, None)
    )
    assert fired.description == f"Engine 0 of demo-8b (unknown, {cause}): seen, so no other alert can fire. First: {first}."


def test_a_storm_ends_with_the_state_or_ninety_seconds_after_it_was_last_found() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    (storm,) = alerts.update(0.0, *STORM)
    assert alerts.update(5.0, *DIP) == (storm,)
    assert [alert.since for alert in alerts.update(90.0, *DIP)] == [storm.since]
    assert alerts.update(90.1, *DIP) == ()


def test_a_storm_that_dips_below_its_ratio_goes_on_also_through_lost_polls() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    for at, said in ((0.0, STORM), (5.0, DIP), (10.0, LOST), (15.0, LOST), (20.0, LOST), (25.0, STORM), (30.0, DIP), (85.0, LOST)):
        assert [alert.since for alert in alerts.update(at, *said)] == [0.0]


def test_a_warning_that_dips_while_firing_does_not_wait_again() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    bound = (verdict(Cause.ADMISSION), signals())
    told = [
        (0.0, bound, False),
        (60.0, bound, False),
        (120.0, bound, True),
        (125.0, CALM, True),
        (184.0, bound, True),
        (244.0, bound, True),
    ]
    for at, said, fires in told:
        assert (names(alerts.update(at, *said)) == {"KVBound"}) is fires


def test_lost_polls_do_not_end_a_storm_for_ninety_seconds() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    (before,) = alerts.update(100.0, *STORM)
    assert [alerts.update(at, *LOST) for at in (105.0, 190.0)] == [(before,)] * 2
    assert alerts.update(195.0, *LOST) == ()


def test_lost_polls_do_not_end_a_warning_until_its_evidence_is_ninety_seconds_old_and_its_hold_is_over() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    for at in (0.0, 60.0, 120.0):
        fired = alerts.update(at, verdict(Cause.ADMISSION), signals())
    assert [alerts.update(at, *LOST) for at in (125.0, 210.0, 215.0, 269.0)] == [fired] * 4
    assert alerts.update(270.0, *LOST) == ()


@pytest.mark.parametrize(
    ("silent", "fires"),
    [
        pytest.param(54.9, False, id="not yet"),
        pytest.param(55.0, True, id="10 s of patience and the alert's 45 s"),
        pytest.param(300.0, True, id="after a gap of minutes in which nothing moved"),
    ],
)
def test_counters_that_stood_still_across_lost_polls_are_evidence_of_a_stall(silent: float, fires: bool) -> None:
    alerts = EngineAlerts(Policy(), POLL)
    alerts.update(0.0, *CALM)
    fired = alerts.update(silent, verdict(Cause.STALLED, "no counter has moved"), signals(seconds_without_life=silent))
    assert (names(fired) == {"EngineStalled"}) is fires


@pytest.mark.parametrize("interval", [1.0, 5.0, 15.0, 30.0, 300.0])
def test_three_lost_polls_in_a_row_split_no_storm_at_any_interval(interval: float) -> None:
    alerts = EngineAlerts(Policy(), interval)
    said = [STORM, LOST, LOST, LOST, STORM]
    fired = [alert for n, one in enumerate(said) for alert in alerts.update(n * interval, *one)]
    assert [alert.since for alert in fired if alert.name == "PreemptionStorm"] == [0.0] * 5


@pytest.mark.parametrize("every", [20, 5, 2], ids=["one in 20", "one in 5", "every second"])
@pytest.mark.parametrize(
    ("cause", "numbers", "name", "after"),
    [
        (Cause.STALLED, None, "EngineStalled", 45),
        (Cause.ADMISSION, None, "KVBound", 120),
        (Cause.KV_HIGH, None, "KVScaleOut", 900),
        (Cause.COMPUTE, None, "ComputeBound", 300),
        (Cause.AMBIGUOUS, None, "WatcherBlind", 300),
    ],
)
def test_lost_polls_postpone_nothing(cause: Cause, numbers: None, name: str, after: int, every: int) -> None:
    alerts = EngineAlerts(Policy(), POLL)
    fired = [
        at
        for at in range(0, 7200, 5)
        if names(alerts.update(float(at), *(LOST if at and at // 5 % every == 0 else (verdict(cause, "seen"), signals()))))
    ]
    assert fired == list(range(after, 7200, 5))


def test_a_storm_that_comes_back_is_a_new_one() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    alerts.update(0.0, *STORM)
    alerts.update(5.0, *CALM)
    assert [alert.since for alert in alerts.update(40.0, *STORM)] == [40.0]


def test_a_lost_poll_never_starts_an_alert() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    assert [names(alerts.update(float(at), *LOST)) for at in range(0, 7200, 60)] == [set()] * 120


KV_TOO_SMALL = signals(lasting_demand_ratio=1.2)
SLOW_FIRST_TOKEN = signals(time_to_first_token=p95(2.1))


@pytest.mark.parametrize(
    ("cause", "numbers", "name", "after"),
    [
        pytest.param(Cause.STALLED, signals(), "EngineStalled", 45.0, id="stalled"),
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
    alerts = EngineAlerts(OBJECTIVES, POLL)
    said = verdict(cause, "seen it")
    for waited in (*range(0, int(after), 5), after - 0.1):
        assert alerts.update(1000.0 + waited, said, numbers) == ()
    (fired,) = alerts.update(1000.0 + after, said, numbers)
    assert (fired.name, fired.since) == (name, 1000.0 + after)
    assert fired.description.startswith("Engine 0 of demo-8b (")
    assert " First: " in fired.description
    assert fired.severity is (Severity.CRITICAL if name == "EngineStalled" else Severity.WARNING)


@pytest.mark.parametrize(
    ("cause", "numbers"),
    [
        pytest.param(
            Cause.OK, signals(lasting_demand_ratio=1.0, time_to_first_token=p95(2.0)), id="demand and latency exactly at the limit"
        ),
        pytest.param(Cause.IDLE, signals(), id="idle"),
        pytest.param(Cause.ASLEEP, None, id="asleep on purpose"),
        pytest.param(Cause.UNREACHABLE, None, id="unreachable is the target's alert"),
    ],
)
def test_nothing_fires_however_long_it_lasts(cause: Cause, numbers: Signals | None) -> None:
    alerts = EngineAlerts(OBJECTIVES, POLL)
    for at in range(0, 7200, 60):
        assert alerts.update(float(at), verdict(cause), numbers) == ()


def test_a_break_starts_the_waiting_time_again() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    alerts.update(0.0, verdict(Cause.ADMISSION), signals())
    alerts.update(80.0, *CALM)
    for at in (85.0, 145.0, 204.0):
        assert alerts.update(at, verdict(Cause.ADMISSION), signals()) == ()
    assert names(alerts.update(205.0, verdict(Cause.ADMISSION), signals())) == {"KVBound"}


KV_HIGH = (verdict(Cause.KV_HIGH), signals())


@pytest.mark.parametrize(
    ("others", "fires"),
    [
        pytest.param((verdict(Cause.PREEMPTING), signals()), True, id="the full cache begins to preempt"),
        pytest.param((verdict(Cause.ADMISSION), signals()), True, id="the next prompt does not fit for a while"),
        pytest.param((verdict(Cause.OK), signals(lasting_demand_ratio=1.1)), True, id="it empties while more waits than it holds"),
        pytest.param((verdict(Cause.OK), signals(demand_ratio=1.1)), False, id="one scrape alone saw more than it holds"),
        pytest.param((verdict(Cause.SEQUENCE_SLOTS), signals()), False, id="something else binds"),
        pytest.param(CALM, False, id="it has room"),
    ],
)
def test_trouble_with_the_cache_that_changes_its_kind_is_waited_for_once(others: tuple[Verdict, Signals], fires: bool) -> None:
    alerts = EngineAlerts(Policy(), POLL)
    for at in range(0, 1801, 5):
        found = names(alerts.update(float(at), *(others if at // 120 % 2 else KV_HIGH)))
        assert ("KVScaleOut" in found) is (fires and at >= 900)


def test_the_load_of_an_engine_that_hangs_asks_for_no_replica() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    told = [names(alerts.update(float(at), verdict(Cause.STALLED), KV_TOO_SMALL)) for at in range(0, 3600, 5)]
    assert set().union(*told) == {"EngineStalled"}


def test_no_objective_no_latency_alert() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    slow = signals(time_to_first_token=p95(60.0), inter_token_latency=p95(5.0), e2e_latency=p95(600.0))
    for at in (0.0, 300.0, 600.0):
        assert alerts.update(at, verdict(Cause.OK), slow) == ()


def test_a_missed_objective_is_told_with_the_number_and_the_objective() -> None:
    (fired,) = held(EngineAlerts(OBJECTIVES, POLL), 300.0, verdict(Cause.OK), SLOW_FIRST_TOKEN)
    assert "time to first token 2.1 s at the 95th percentile (objective 2 s)" in fired.description


def test_an_objective_that_is_set_or_lifted_while_it_runs_holds_from_the_next_poll_on() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    assert held(alerts, 600.0, verdict(Cause.OK), SLOW_FIRST_TOKEN) == ()
    alerts.reconfigure(OBJECTIVES)
    fired = [at for at in range(605, 1000, 5) if alerts.update(float(at), verdict(Cause.OK), SLOW_FIRST_TOKEN)]
    assert fired == list(range(905, 1000, 5))
    alerts.reconfigure(Policy())
    told = [at for at in range(1000, 1300, 5) if alerts.update(float(at), verdict(Cause.OK), SLOW_FIRST_TOKEN)]
    # Nobody judges it any more: the last word, at 995 s, stands for 90 s, and then the warning has its hold of 60 s.
    assert told == list(range(1000, 1145, 5))


def test_a_latency_exactly_at_its_objective_is_not_among_those_that_are_missed() -> None:
    met = replace(SLOW_FIRST_TOKEN, inter_token_latency=p95(0.1))
    (fired,) = held(EngineAlerts(OBJECTIVES, POLL), 300.0, verdict(Cause.OK), met)
    assert "): time to first token 2.1 s at the 95th percentile (objective 2 s). First: " in fired.description


def replicas(current: str, proposed: str) -> tuple[Change, ...]:
    return advice("replicas", current, proposed)


@pytest.mark.parametrize(
    ("cause", "demand", "given", "said"),
    [
        pytest.param(
            Cause.ADMISSION,
            2.3,
            (),
            "the work needed 2.30 times the KV cache there is, the median of 120 s (running 9). "
            "First: add replicas until it needs no more than there is, or give this one more KV blocks.",
            id="more than the cache",
        ),
        pytest.param(
            Cause.OK,
            1.001,
            (),
            "the work needed 1.01 times the KV cache there is, the median of 120 s (running 9). "
            "First: add replicas until it needs no more than there is, or give this one more KV blocks.",
            id="hardly more than the cache is never 1.00 times",
        ),
        pytest.param(
            Cause.KV_HIGH,
            1.0,
            (),
            "seen so (running 9). First: add a replica before the next peak; nothing is lost yet.",
            id="exactly the cache is no harm",
        ),
        pytest.param(
            Cause.KV_HIGH,
            None,
            (),
            "seen so (running 9). First: add a replica before the next peak; nothing is lost yet.",
            id="a cache of unknown size",
        ),
        pytest.param(
            Cause.PREEMPTING,
            0.9,
            (),
            "seen so (running 9). First: add a replica, or give this one more KV blocks.",
            id="a cache that binds is harm",
        ),
        pytest.param(
            Cause.ADMISSION,
            2.3,
            replicas("1", "3"),
            "the work needed 2.30 times the KV cache there is, the median of 120 s (running 9). First: replicas 1 \N{RIGHTWARDS ARROW} 3.",
            id="what the status page advises comes first",
        ),
    ],
)
def test_scale_out_says_how_much_more_is_needed_and_the_same_first_step_as_the_page(
    cause: Cause, demand: float | None, given: tuple[Change, ...], said: str
) -> None:
    fired = held(EngineAlerts(Policy(), POLL), 900.0, verdict(cause, "seen so"), signals(running=9.0, lasting_demand_ratio=demand), given)
    (text,) = [alert.description for alert in fired if alert.name == "KVScaleOut"]
    assert text.partition("): ")[2] == said


@pytest.mark.parametrize(
    ("interval", "stands"),
    [pytest.param(5.0, 90.0, id="90 s"), pytest.param(22.5, 90.0, id="four polls are as long"), pytest.param(30.0, 120.0, id="four polls")],
)
def test_what_was_seen_last_stands_for_ninety_seconds_and_at_least_four_polls(interval: float, stands: float) -> None:
    at_its_end, after_it = (EngineAlerts(Policy(), interval) for _ in range(2))
    for alerts in (at_its_end, after_it):
        alerts.update(0.0, *STORM)
    assert "PreemptionStorm" in names(at_its_end.update(stands, *LOST))
    assert "PreemptionStorm" not in names(after_it.update(stands + 0.1, *LOST))


def test_conditions_are_told_as_seen_last_and_as_no_once_that_is_too_old_and_not_before_they_were_seen() -> None:
    alerts, told = EngineAlerts(Policy(), POLL), []
    for at, said in ((0.0, LOST), (5.0, STORM), (10.0, LOST), (95.0, LOST), (95.1, LOST)):
        alerts.update(at, *said)
        told.append({name: alerts.conditions.get(name) for name in ("PreemptionStorm", "KVBound", "KVScaleOut", "LatencyObjectiveMissed")})
    unseen = {"PreemptionStorm": None, "KVBound": None, "KVScaleOut": None, "LatencyObjectiveMissed": None}
    seen = {"PreemptionStorm": True, "KVBound": True, "KVScaleOut": True, "LatencyObjectiveMissed": None}
    too_old = {"PreemptionStorm": False, "KVBound": False, "KVScaleOut": False, "LatencyObjectiveMissed": None}
    assert told == [unseen, seen, seen, seen, too_old]


def test_the_condition_of_a_target_is_told_too() -> None:
    target = TargetAlerts(POLL)
    assert target.conditions == {}
    target.update(0.0, None)
    assert target.conditions == {"TargetDown": False}


def deferred(requests: float) -> GaugeStats:
    return GaugeStats(mean=requests, low=requests, peak=requests, last=requests)


@pytest.mark.parametrize(
    ("running", "waiting", "waits_for_others", "restarts"),
    [
        pytest.param(0.0, 3.0, deferred(3.0), False, id="all that waits waits for others"),
        pytest.param(0.0, 4.0, deferred(3.0), True, id="one waits for this engine"),
        pytest.param(1.0, 3.0, deferred(3.0), True, id="one runs"),
        pytest.param(0.0, 0.0, deferred(0.0), True, id="nothing waits"),
        pytest.param(0.0, 3.0, None, True, id="not reported"),
    ],
)
def test_a_stall_of_others_making_is_not_answered_with_a_restart(
    running: float, waiting: float, waits_for_others: GaugeStats | None, restarts: bool
) -> None:
    numbers = signals(running=running, waiting=waiting)
    numbers = replace(numbers, recent=replace(numbers.recent, deferred=waits_for_others))
    (fired,) = held(EngineAlerts(Policy(), POLL), 45.0, verdict(Cause.STALLED, "no token"), numbers)
    first = fired.description.partition(" First: ")[2]
    assert ("restart it if still no token comes out" in first) is restarts
    assert ("see whether the prefill server, the KV store or the source of LoRA adapters answers" in first) is not restarts


def test_an_alert_tells_all_the_evidence_there_is() -> None:
    (fired,) = held(EngineAlerts(Policy(), POLL), 120.0, verdict(Cause.ADMISSION, "one thing", "another"), signals())
    assert fired.description.startswith("Engine 0 of demo-8b (kv_bound, admission): one thing; another. First: ")


def test_what_all_engines_share_cannot_be_changed_by_one() -> None:
    facts = Facts(Policy(), *CALM)
    for shared, name in [
        (facts, "verdict"),
        *((one, "name") for one in DEFINITIONS.values()),
        *((one.rule, "first") for one in DEFINITIONS.values()),
    ]:
        with pytest.raises(FrozenInstanceError):
            setattr(shared, name, "changed")


def failed(reason: FailureReason) -> ScrapeFailure:
    return ScrapeFailure(at=0.0, reason=reason, detail="what the peer said")


ANSWERED = {FailureReason.NO_VLLM_METRICS, FailureReason.STATS_DISABLED, FailureReason.NOT_METRICS, FailureReason.EMPTY}
"""Something answered; `WatcherBlind` tells of it."""


@pytest.mark.parametrize("reason", list(FailureReason))
def test_a_page_that_is_no_metrics_raises_one_alert_and_no_answer_another(reason: FailureReason) -> None:
    target, engine = TargetAlerts(POLL), EngineAlerts(Policy(), POLL)
    raised = set()
    for at in range(0, 3600, 5):
        raised |= names(target.update(float(at), failed(reason)))
        raised |= names(engine.update(float(at), Verdict(None, State.UNKNOWN, reason.cause, ("why",), 0.0), None))
    assert raised == ({"WatcherBlind"} if reason in ANSWERED else {"TargetDown"})


@pytest.mark.parametrize(
    ("good", "since"),
    [
        pytest.param([], 240, id="from the start: vLLM loads its weights"),
        pytest.param(range(-600, 0, 5), 285, id="after it was up: most of a minute later"),
        pytest.param([100], 240, id="one good poll in five minutes"),
        pytest.param([*range(-600, 0, 5), 150], 285, id="the same after it was up"),
    ],
)
def test_target_down_comes_within_five_minutes_whatever_single_polls_do(good: list[int], since: int) -> None:
    alerts = TargetAlerts(POLL)
    fired = [at for at in range(min([*good, 0]), 400, 5) if alerts.update(float(at), None if at in good else failed(FailureReason.TIMEOUT))]
    assert fired == list(range(since, 400, 5))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("interval", [1, 5, 15])
def test_a_target_that_loses_every_second_poll_is_not_down(seed: int, interval: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - noise, not a secret
    alerts = TargetAlerts(interval)
    for at in range(0, 7200, interval):
        assert alerts.update(float(at), failed(FailureReason.TIMEOUT) if chance.random() < 0.5 else None) == ()


def test_a_target_is_down_once_three_of_four_polls_of_the_last_minute_failed() -> None:
    alerts, down = TargetAlerts(1.0), []
    for at in range(300):
        alerts.update(float(at), failed(FailureReason.TIMEOUT) if at > 100 else None)
        down.append(alerts.conditions["TargetDown"])
    # 61 polls in the minute: 46 of them are more than three quarters, 45 are not.
    assert down.index(True) == 146


def test_exactly_three_of_four_are_enough() -> None:
    alerts = TargetAlerts(20.0)  # four polls in each minute
    for at, failure in ((0.0, None), (20.0, failed(FailureReason.TIMEOUT)), (40.0, failed(FailureReason.TIMEOUT))):
        alerts.update(at, failure)
        assert alerts.conditions == {"TargetDown": False}
    alerts.update(60.0, failed(FailureReason.TIMEOUT))
    assert alerts.conditions == {"TargetDown": True}


def test_target_down_tells_the_last_failure_and_ends_a_minute_after_a_quarter_of_the_polls_are_good() -> None:
    alerts = TargetAlerts(POLL)
    for at in range(0, 300, 5):
        alerts.update(float(at), failed(FailureReason.CONNECT))
    good = [(at, alerts.update(float(at), None)) for at in range(300, 400, 5)]
    # 13 polls in the minute: with the fourth good one fewer than three quarters have failed.
    assert [at for at, fired in good if fired] == list(range(300, 375, 5))
    assert "the last for connect: what the peer said" in good[0][1][0].description


@pytest.mark.parametrize(
    ("others", "said"),
    [
        pytest.param([], "what the peer said. First:", id="nothing else is watched"),
        pytest.param(["up", "up", "down"], "; 2 of 3 others named with it answer. First:", id="it alone"),
        pytest.param(["up"], "; 1 of 1 other named with it answers. First:", id="one other"),
        pytest.param(["down", "down"], "; 0 of 2 others named with it answer. First:", id="all of them: the network, or the node"),
        pytest.param(["up", "new"], "; 1 of 1 other named with it answers. First:", id="one was not asked yet"),
    ],
)
def test_target_down_tells_whether_the_others_answer(others: list[str], said: str) -> None:
    alerts = TargetAlerts(POLL)
    failure = {"up": None, "new": None, "down": failed(FailureReason.CONNECT)}
    views = [TargetView(one, one, 5.0, at=None if one == "new" else 1.0, failure=failure[one]) for one in others]
    fired = [alerts.update(float(at), failed(FailureReason.CONNECT), lambda: views) for at in range(0, 300, 5)]
    assert said in fired[-1][0].description


def test_only_the_storm_is_p1_and_only_two_alerts_are_pages() -> None:
    assert {name: dict(alert.labels) for name, alert in DEFINITIONS.items() if alert.labels} == {"PreemptionStorm": {"priority": "P1"}}
    assert {name for name, alert in DEFINITIONS.items() if alert.severity is Severity.CRITICAL} == {"PreemptionStorm", "EngineStalled"}


SLOWER = BaselineLine("ttft", change=0.5, worse=True, words="time to first token, P95 1.20 s against 800 ms (+50.0 %)")
AS_BEFORE = BaselineLine("itl", change=0.02, worse=False, words="inter-token latency, P95 20 ms against 20 ms (+2.0 %)")
REGRESSED = BaselineComparison((SLOWER, AS_BEFORE))


def test_an_engine_worse_than_its_baseline_warns_after_half_an_hour_with_the_lines_that_got_worse() -> None:
    alerts = EngineAlerts(Policy(), POLL)
    assert held(alerts, 1795.0, *CALM, (), REGRESSED) == ()
    (fired,) = alerts.update(1800.0, *CALM, (), REGRESSED)
    assert (fired.name, fired.severity) == ("BaselineRegressed", Severity.WARNING)
    assert "time to first token, P95 1.20 s against 800 ms (+50.0 %)" in fired.description
    assert "inter-token" not in fired.description


@pytest.mark.parametrize(
    "baseline",
    [
        pytest.param(None, id="there is no baseline"),
        pytest.param(BaselineComparison((AS_BEFORE,)), id="no line is worse"),
        pytest.param(BaselineComparison((), ("the loads differ",)), id="another load"),
    ],
)
def test_without_a_line_that_got_worse_the_baseline_warns_nobody(baseline: BaselineComparison | None) -> None:
    assert held(EngineAlerts(Policy(), POLL), 4000.0, *CALM, (), baseline) == ()
