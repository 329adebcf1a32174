"""Every act of every scenario ends with the verdict its text promises, in virtual time."""

from __future__ import annotations

import pytest
from rehearsal import Rehearsal

from kvwatch.demo.acts import SCENARIOS, SERVER
from kvwatch.model import Cause, State

ENDS = {
    "story": (State.COMPUTE_BOUND, Cause.SEQUENCE_SLOTS, {"PreemptionStorm", "KVBound"}),
    "storm": (State.HEALTHY, None, {"PreemptionStorm", "KVBound"}),
    "full": (State.HEALTHY, None, set()),
    "long-prompts": (State.KV_BOUND, Cause.ADMISSION, set()),
    "slots": (State.COMPUTE_BOUND, Cause.SEQUENCE_SLOTS, set()),
    "step-budget": (State.COMPUTE_BOUND, Cause.STEP_BUDGET, set()),
    "compute": (State.COMPUTE_BOUND, Cause.COMPUTE, set()),
    "frontend": (State.COMPUTE_BOUND, Cause.FRONTEND, set()),
    "deferred": (State.COMPUTE_BOUND, Cause.DEFERRED, set()),
    "stall": (State.HEALTHY, Cause.OK, {"EngineStalled"}),
    "idle": (State.HEALTHY, Cause.IDLE, set()),
    "dead": (State.HEALTHY, Cause.OK, {"TargetDown"}),
    "asleep": (State.UNKNOWN, Cause.ASLEEP, set()),
    "no-statistics": (State.UNKNOWN, Cause.STATS_DISABLED, set()),
}
"""How each scenario ends, and every alert of 5 s polls on its way; ``None`` is any cause of that state."""
UNPLAYED = {
    Cause.WARMING_UP: "what every scenario begins with",
    Cause.STALE: "kvwatch itself stands still",
    Cause.NO_VLLM_METRICS: "somebody else's server",
    Cause.AMBIGUOUS: "numbers that do not single out a limit",
}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_every_act_ends_with_the_verdict_it_promises_and_only_what_should_alert_does(scenario, seed):
    rehearsal = Rehearsal(seed)
    last = {act.title: (rehearsal.play(act)[-1].verdict, act.expected) for act in SCENARIOS[scenario]}
    assert {title: verdict.cause for title, (verdict, expected) in last.items() if verdict.cause not in expected} == {}
    state, cause, alerts = ENDS[scenario]
    end = list(last.values())[-1][0]
    assert (end.state, cause or end.cause, rehearsal.alerts) == (state, end.cause, alerts)


def test_every_cause_is_what_some_act_ends_with():
    played = {cause for acts in SCENARIOS.values() for act in acts for cause in act.expected}
    assert set(Cause) - played == set(UNPLAYED)


def test_the_story_pages_for_the_storm_alone_and_resolves_after_the_advice():
    rehearsal = Rehearsal(seed=1)
    paging = {}
    for act in SCENARIOS["story"]:
        said = rehearsal.play(act)
        paging[act.title] = [any(alert.name == "PreemptionStorm" for alert in one.alerts) for one in said]
    assert {title for title, pages in paging.items() if pages[-1]} == {"The campaign"}
    assert not any(paging["A quiet morning"] + paging["Full, and fine"] + paging["Too careful"])


def test_following_the_advice_ends_the_preemptions():
    rehearsal = Rehearsal(seed=2)
    for act in SCENARIOS["storm"]:
        said = rehearsal.play(act)
    assert 8 <= rehearsal.advised < SERVER.max_num_seqs
    assert rehearsal.simulation.config.max_num_seqs == rehearsal.advised
    assert (said[-1].verdict.state, said[-1].signals.slow.preemptions) == (State.HEALTHY, 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_advice_is_followed_under_the_same_load_and_changes(seed):
    rehearsal = Rehearsal(seed)
    calm, storm, fixed, _ = SCENARIOS["storm"]
    rehearsal.play(calm)
    before = rehearsal.play(storm)[-1]
    load = rehearsal.simulation.load
    after = rehearsal.play(fixed)[-1]
    assert rehearsal.simulation.load is load
    assert before.advice[0].lever == "--max-num-seqs"
    assert after.advice[0].lever == "replicas"
    assert after.signals.slow.preemptions < before.signals.slow.preemptions / 20


def test_an_engine_that_hung_pages_for_that_and_for_nothing_else():
    rehearsal = Rehearsal(seed=1)
    fired = {alert.name for act in SCENARIOS["stall"] for said in rehearsal.play(act) for alert in said.alerts}
    assert fired == {"EngineStalled"}


def test_a_full_cache_without_a_queue_is_never_called_a_fault():
    rehearsal = Rehearsal(seed=3)
    calm, full = SCENARIOS["story"][:2]
    rehearsal.play(calm)
    said = rehearsal.play(full)
    assert max(one.signals.kv_usage or 0.0 for one in said if one.signals) > 0.85
    assert {one.verdict.cause for one in said} <= {Cause.OK, Cause.KV_HIGH}
