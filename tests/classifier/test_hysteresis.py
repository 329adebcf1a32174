from __future__ import annotations

import pytest

from kvwatch.classifier.hysteresis import Hysteresis
from kvwatch.classifier.rule import Candidate
from kvwatch.model import Cause, State

OK = (State.HEALTHY, Cause.OK)
IDLE = (State.HEALTHY, Cause.IDLE)
ADMISSION = (State.KV_BOUND, Cause.ADMISSION)
PREEMPTING = (State.KV_BOUND, Cause.PREEMPTING)
SLOTS = (State.COMPUTE_BOUND, Cause.SEQUENCE_SLOTS)
STALLED = (State.COMPUTE_BOUND, Cause.STALLED)
DOWN = (State.UNKNOWN, Cause.UNREACHABLE)
WARMING = (State.UNKNOWN, Cause.WARMING_UP)


def said(findings, interval=5.0):
    """What is said when the rules find these, one a poll."""
    settled = Hysteresis(interval)
    heard = [
        settled.settle(Candidate(state, cause, (), sustained=cause in (Cause.PREEMPTING, Cause.STALLED)), at=interval * i)
        for i, (state, cause) in enumerate(findings)
    ]
    return [(finding.state, finding.cause) for finding in heard]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([OK, ADMISSION, OK, OK], [OK] * 4, id="one poll of trouble is not told"),
        pytest.param([OK, ADMISSION, ADMISSION], [OK, OK, ADMISSION], id="two polls are"),
        pytest.param([OK, PREEMPTING], [OK, PREEMPTING], id="several preemptions are evidence by themselves"),
        pytest.param([SLOTS, OK, OK, SLOTS, OK, OK], [SLOTS] * 6, id="a bound engine that recovers for two polls stays bound"),
        pytest.param([SLOTS, OK, OK, OK], [SLOTS, SLOTS, SLOTS, OK], id="three polls of health are recovery"),
        pytest.param([SLOTS, IDLE, IDLE], [SLOTS, SLOTS, IDLE], id="an engine without work recovers sooner"),
        pytest.param([SLOTS, ADMISSION, ADMISSION, ADMISSION], [SLOTS, SLOTS, SLOTS, ADMISSION], id="from one limit to another"),
        pytest.param([ADMISSION, PREEMPTING, ADMISSION], [ADMISSION] * 3, id="a cause that comes and goes is not told"),
        pytest.param([SLOTS, STALLED], [SLOTS, STALLED], id="a stall has had its own patience"),
        pytest.param([OK, DOWN, OK, SLOTS, DOWN, SLOTS], [OK, DOWN, OK, OK, DOWN, SLOTS], id="what we cannot see is said at once"),
        pytest.param([SLOTS, STALLED, OK, OK], [SLOTS, STALLED, OK, OK], id="a token ends a stall"),
        pytest.param([OK, SLOTS, ADMISSION, SLOTS], [OK, OK, ADMISSION, ADMISSION], id="others that alternate are no reason to stay"),
        pytest.param([SLOTS, OK, ADMISSION, OK, OK], [SLOTS, SLOTS, SLOTS, OK, OK], id="nor in a bound state"),
        pytest.param([SLOTS, OK, SLOTS, OK, OK, OK], [SLOTS] * 5 + [OK], id="it counts from when the state was last found"),
        pytest.param([OK, IDLE, OK], [OK, IDLE, OK], id="causes of health change freely"),
        pytest.param([SLOTS, DOWN, OK, OK, OK], [SLOTS, DOWN, SLOTS, SLOTS, OK], id="a lost poll is no recovery"),
        pytest.param([SLOTS, DOWN, DOWN, OK, SLOTS], [SLOTS, DOWN, DOWN, SLOTS, SLOTS], id="nor are several"),
        pytest.param([SLOTS, OK, DOWN, OK], [SLOTS, SLOTS, DOWN, OK], id="a lost poll does not postpone recovery"),
        pytest.param([SLOTS, DOWN, OK, DOWN, OK], [SLOTS, DOWN, SLOTS, DOWN, OK], id="nor do several among others"),
        pytest.param([SLOTS, DOWN, ADMISSION], [SLOTS, DOWN, ADMISSION], id="another limit after a lost poll is told"),
        pytest.param([STALLED, DOWN, OK], [STALLED, DOWN, OK], id="a token after a lost poll ends a stall"),
        pytest.param([SLOTS, DOWN, WARMING, OK], [SLOTS, DOWN, WARMING, OK], id="what started anew owes nothing"),
    ],
)
def test_a_state_changes_only_on_sustained_evidence(found, expected):
    assert said(found) == expected


def test_polls_far_apart_are_sustained_evidence_by_themselves():
    assert said([OK, SLOTS], interval=15.0) == [OK, SLOTS]


@pytest.mark.parametrize(("at", "cause"), [(8.9, Cause.OK), (9.0, Cause.SEQUENCE_SLOTS)])
def test_trouble_is_told_when_it_has_lasted_for_four_seconds(at, cause):
    settled = Hysteresis(5.0)
    for moment, found in ((0.0, OK), (5.0, SLOTS)):
        settled.settle(Candidate(*found, ()), at=moment)
    assert settled.settle(Candidate(*SLOTS, ()), at=at).cause is cause


@pytest.mark.parametrize(("interval", "cause"), [(7.9, Cause.OK), (8.0, Cause.SEQUENCE_SLOTS)])
def test_polls_eight_seconds_apart_are_far_apart(interval, cause):
    assert said([OK, SLOTS], interval=interval)[-1][1] is cause


@pytest.mark.parametrize(("at", "cause"), [(9.4, Cause.SEQUENCE_SLOTS), (9.5, Cause.OK)])
def test_the_third_poll_counts_where_it_comes_half_a_second_early(at, cause):
    settled = Hysteresis(5.0)
    for moment, found in ((-5.0, SLOTS), (0.0, OK), (5.0, OK)):
        settled.settle(Candidate(*found, ()), at=moment)
    assert settled.settle(Candidate(*OK, ()), at=at).cause is cause


def test_health_that_lasted_from_one_poll_to_the_next_is_believed_where_they_are_far_apart():
    for interval, expected in ((5.0, Cause.PREEMPTING), (15.0, Cause.OK)):
        settled = Hysteresis(interval)
        settled.settle(Candidate(*PREEMPTING, ()), at=0.0)
        assert settled.settle(Candidate(*OK, (), sustained=True), at=interval).cause is expected


def test_since_is_when_the_state_began_and_survives_a_change_of_cause():
    settled = Hysteresis(5.0)
    for at, (state, cause) in enumerate([OK, PREEMPTING, PREEMPTING, ADMISSION, ADMISSION, ADMISSION, ADMISSION]):
        settled.settle(Candidate(state, cause, ()), at=5.0 * at)
    assert (settled.since, settled.confirmed.cause) == (10.0, Cause.ADMISSION)


def test_the_evidence_is_that_of_now_while_the_verdict_stands():
    settled = Hysteresis(5.0)
    settled.settle(Candidate(*SLOTS, ("3 waiting",)), at=0)
    assert settled.settle(Candidate(*SLOTS, ("9 waiting",)), at=5).evidence == ("9 waiting",)


def test_what_the_numbers_say_instead_is_quoted_as_such():
    settled = Hysteresis(5.0)
    settled.settle(Candidate(*SLOTS, ("3 waiting",)), at=0)
    assert settled.settle(Candidate(*OK, ("0 waiting",)), at=5).evidence == ("for a moment the numbers say healthy/ok", "0 waiting")


def test_an_engine_that_stays_bound_across_lost_polls_has_been_so_since_before_them():
    settled = Hysteresis(5.0)
    for moment, found in ((0.0, SLOTS), (5.0, DOWN), (10.0, OK)):
        settled.settle(Candidate(*found, ()), at=moment)
    assert (settled.confirmed.cause, settled.since) == (Cause.SEQUENCE_SLOTS, 0.0)
