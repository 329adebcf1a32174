"""Who waits since when, who went back to the queue, what nobody holds; worked out from single snapshots."""

from __future__ import annotations

import pytest
from builders import snapshot

from kvwatch.classifier.traffic import Traffic


def after(*snapshots, span=60.0):
    """What is known after these."""
    traffic = Traffic(span)
    for one in snapshots:
        traffic.note(one)
    return traffic


FULL = {"running": 8.0, "waiting": 0.0, "kv_usage": 0.9, "finished": 10.0}


@pytest.mark.parametrize(
    ("now", "back"),
    [
        pytest.param({"running": 7.0, "waiting": 1.0}, 1.0, id="one less runs, one more waits"),
        pytest.param({"running": 5.0, "waiting": 2.0}, 2.0, id="three less run, two more wait: two at least"),
        pytest.param({"running": 7.0, "waiting": 4.0}, 1.0, id="one less runs, three others came"),
        pytest.param({"running": 7.0, "waiting": 1.0, "finished": 11.0}, 0.0, id="it has finished, and another came"),
        pytest.param({"running": 6.0, "waiting": 2.0, "finished": 11.0}, 1.0, id="one of two has finished"),
        pytest.param({"running": 8.0, "waiting": 1.0}, 0.0, id="only the queue has grown"),
        pytest.param({"running": 9.0, "waiting": 0.0}, 0.0, id="one more runs"),
        pytest.param({"running": 7.0, "waiting": 0.0}, 0.0, id="it has left"),
        pytest.param({"running": 7.0, "waiting": 1.0, "finished": None}, 0.0, id="who finished is not known"),
        pytest.param({"running": None, "waiting": 1.0}, 0.0, id="who runs is not known"),
        pytest.param({"running": 7.0, "waiting": None}, 0.0, id="who waits is not known"),
    ],
)
def test_who_went_back_to_the_queue(now, back):
    assert after(snapshot(0.0, **FULL), snapshot(5.0, **(FULL | now))).preempted(60.0) == back


@pytest.mark.parametrize(("usage", "back"), [(0.79, 0.0), (0.8, 1.0), (None, 0.0)])
def test_a_batch_that_shrinks_in_a_roomy_cache_lost_nobody_for_want_of_blocks(usage, back):
    traffic = after(snapshot(0.0, **(FULL | {"kv_usage": usage})), snapshot(5.0, running=7.0, waiting=1.0, finished=10.0))
    assert traffic.preempted(60.0) == back


def test_preemptions_seen_are_counted_over_the_seconds_asked_for_and_forgotten_after_the_span():
    seen = [snapshot(0.0, **FULL), snapshot(10.0, **(FULL | {"running": 7.0, "waiting": 1.0})), snapshot(20.0, **FULL)]
    assert after(*seen).preempted(10.0) == 0.0
    assert after(*seen).preempted(10.1) == 1.0
    assert after(*seen, snapshot(69.0, **FULL)).preempted(1000.0) == 1.0
    assert after(*seen, snapshot(70.0, **FULL)).preempted(1000.0) == 0.0


def test_how_long_somebody_has_waited():
    waits = [snapshot(float(t), running=1.0, waiting=1.0) for t in (10, 15, 20)]
    assert after(snapshot(5.0), *waits).queued_seconds() == 10.0
    assert after(*waits, snapshot(25.0)).queued_seconds() == 0.0
    assert after(*waits, snapshot(25.0), snapshot(30.0, waiting=1.0)).queued_seconds() == 0.0
    assert after().queued_seconds() == 0.0


def test_those_that_wait_for_others_do_not_wait_for_capacity():
    deferred = [snapshot(float(t), waiting=2.0, waiting_deferred=2.0) for t in (10, 15)]
    assert after(*deferred).queued_seconds() == 0.0


@pytest.mark.parametrize(
    ("last", "cool"),
    [
        pytest.param({"kv_usage": 0.69}, 10.0, id="a cool cache and nobody waits"),
        pytest.param({"kv_usage": 0.7}, None, id="no longer cool"),
        pytest.param({"kv_usage": 0.1, "waiting": 1.0}, None, id="somebody waits"),
        pytest.param({"kv_usage": 0.1, "preemptions": 1.0}, 0.0, id="somebody was preempted: cool from now on"),
        pytest.param({"kv_usage": 0.8, "preemptions": 1.0}, None, id="somebody was preempted from a cache that is not"),
        pytest.param({"kv_usage": None}, None, id="usage is not known"),
    ],
)
def test_how_long_the_cache_has_been_cool(last, cool):
    cold = [snapshot(float(t), running=1.0, kv_usage=0.2) for t in (0, 5)]
    assert after(*cold, snapshot(10.0, **last)).cool_seconds() == cool


def test_what_is_held_at_rest_is_known_after_two_scrapes_without_work_and_never_more_than_is_held():
    rest = [snapshot(0.0, kv_usage=0.3), snapshot(5.0, kv_usage=0.35)]
    assert after(rest[0]).held_at_rest is None
    assert after(*rest).held_at_rest == 0.35
    assert after(*rest, snapshot(10.0, running=2.0, kv_usage=0.6)).held_at_rest == 0.35
    assert after(*rest, snapshot(10.0, running=2.0, kv_usage=0.2)).held_at_rest == 0.2
    assert after(rest[0], snapshot(5.0, running=1.0, kv_usage=0.35)).held_at_rest is None
    assert after(rest[0], snapshot(5.0, waiting=1.0, kv_usage=0.35)).held_at_rest is None


@pytest.mark.parametrize(("restarted", "held"), [(False, 0.3), (True, None)])
def test_what_nobody_runs_for_goes_with_the_process(restarted, held):
    traffic = after(snapshot(0.0, kv_usage=0.3), snapshot(5.0, kv_usage=0.3), snapshot(10.0, waiting=1.0, kv_usage=0.3))
    traffic.end(restarted=restarted)
    assert (traffic.held_at_rest, traffic.queued_seconds(), traffic.cool_seconds(), traffic.preempted(60.0)) == (held, 0.0, None, 0.0)
