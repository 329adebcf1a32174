"""The state machine of one alert: worked examples of its table, and what holds for any order of yes, no and lost polls."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.alerts.state import AlertPhase, AlertState

INACTIVE, PENDING, FIRING = AlertPhase.INACTIVE, AlertPhase.PENDING, AlertPhase.FIRING
FOR, HOLD, EVIDENCE = 60.0, 30.0, 90.0
YES, NO, LOST = True, False, None


def machine(for_seconds: float = FOR) -> AlertState:
    return AlertState(for_seconds=for_seconds, hold=HOLD, evidence=EVIDENCE)


def run(*steps: tuple[float, bool | None], for_seconds: float = FOR) -> list[AlertPhase]:
    alert = machine(for_seconds)
    return [alert.step(at, seen) for at, seen in steps]


@pytest.mark.parametrize(
    ("steps", "phases"),
    [
        pytest.param([(0, NO), (5, YES)], [INACTIVE, PENDING], id="inactive, met: pending"),
        pytest.param([(0, LOST)], [INACTIVE], id="a lost poll starts nothing"),
        pytest.param([(0, NO), (5, LOST)], [INACTIVE, INACTIVE], id="nor after a no"),
        pytest.param([(0, YES), (59.9, YES), (60, YES)], [PENDING, PENDING, FIRING], id="pending for its time: firing"),
        pytest.param(
            [(0, YES), (30, NO), (35, YES), (94, YES), (95, YES)], [PENDING, INACTIVE, PENDING, PENDING, FIRING], id="a no resets"
        ),
        pytest.param([(0, YES), (30, LOST), (60, LOST)], [PENDING, PENDING, FIRING], id="a lost poll neither resets nor postpones"),
        pytest.param([(0, YES), (40, LOST), (41, NO)], [PENDING, PENDING, INACTIVE], id="a no after lost polls resets"),
        pytest.param(
            [(0, YES), (60, YES), (65, NO), (94.9, NO), (95, NO)], [PENDING, FIRING, FIRING, FIRING, INACTIVE], id="unmet for its hold"
        ),
        pytest.param([(0, YES), (60, YES), (65, NO), (94, YES), (120, NO), (149, NO)], [PENDING] + [FIRING] * 5, id="a dip is forgotten"),
        pytest.param(
            [(0, YES), (60, YES), (150, LOST), (151, LOST), (179.9, LOST), (180, LOST)],
            [PENDING] + [FIRING] * 4 + [INACTIVE],
            id="darkness ends it, its hold after the evidence",
        ),
        pytest.param(
            [(0, YES), (60, YES), (62, NO), (67, LOST), (72, LOST), (77, LOST), (82, YES)],
            [PENDING] + [FIRING] * 6,
            id="dip and lost polls",
        ),
        pytest.param(
            [(0, YES), (91, YES), (151, YES)], [PENDING, PENDING, FIRING], id="no step for longer than evidence lasts: pending anew"
        ),
        pytest.param([(0, YES), (60, YES), (400, YES)], [PENDING, FIRING, PENDING], id="no step for long: it ended meanwhile"),
        pytest.param(
            [(0, YES), (40, LOST), (55, LOST), (95, YES), (154, YES), (155, YES)],
            [PENDING, PENDING, PENDING, PENDING, PENDING, FIRING],
            id="a yes that comes after the last one's evidence has run out begins anew, lost polls between them or not",
        ),
        pytest.param(
            [(0, YES), (60, YES), (100, LOST), (145, LOST), (155, YES), (160, NO), (189, NO), (190, NO)],
            [PENDING] + [FIRING] * 6 + [INACTIVE],
            id="a firing one goes on with such a yes within its hold",
        ),
    ],
)
def test_the_table(steps: list[tuple[float, bool | None]], phases: list[AlertPhase]) -> None:
    assert run(*steps) == phases


def test_without_a_for_it_fires_with_the_first_yes_and_remembers_when() -> None:
    alert = machine(0.0)
    assert [alert.step(at, seen) for at, seen in ((3, NO), (8, YES), (13, NO))] == [INACTIVE, FIRING, FIRING]
    assert alert.since == 8


def test_evidence_that_is_exactly_as_old_as_it_may_be_still_stands() -> None:
    assert run((0, YES), (90, LOST), for_seconds=90.0) == [PENDING, FIRING]
    assert run((0, YES), (90.1, LOST), for_seconds=90.0) == [PENDING, INACTIVE]


STEPS = st.lists(st.tuples(st.sampled_from([1.0, 5.0, 15.0, 40.0]), st.sampled_from([YES, NO, LOST])), max_size=120)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.sampled_from([0.0, 45.0, 120.0]), st.sampled_from([0.0, 30.0, 60.0]))
def test_any_order_of_yes_no_and_lost_polls(gaps: list[tuple[float, bool | None]], for_seconds: float, hold: float) -> None:
    at, alert, story = 0.0, AlertState(for_seconds=for_seconds, hold=hold, evidence=EVIDENCE), []
    for gap, seen in gaps:
        at += gap
        story.append((at, seen, alert.step(at, seen)))
    yes = [at for at, seen, _ in story if seen]
    starts = [now for before, now in pairwise([(0.0, None, INACTIVE), *story]) if now[2] is FIRING and before[2] is not FIRING]
    ends = [now for before, now in pairwise(story) if before[2] is FIRING and now[2] is not FIRING]
    for (began, _, _), (ended, _, _) in zip(starts, ends, strict=False):
        assert ended - began >= hold  # no firing shorter than its hold
        assert ended - max(t for t in yes if t <= ended) >= hold  # and none ends sooner after the last yes
    for (ended, _, _), (began, _, _) in zip(ends, starts[1:], strict=False):
        assert began - max(t for t in yes if t <= ended) >= hold + for_seconds  # no gap in what was seen shorter than its hold
    for began, _, _ in starts:
        # Pending time is seen or held: it began with a yes, no poll since said no, and no yes is older than evidence may be.
        first = max((t for t, seen, _ in story if seen is NO and t <= began), default=-1.0)
        during = [t for t in yes if max(first, 0.0) <= t <= began]
        assert began - during[0] >= for_seconds
        held = [t for t in (*during, began) if t >= began - for_seconds - EVIDENCE]
        assert all(later - earlier <= EVIDENCE for earlier, later in pairwise(held) if later > began - for_seconds)


@given(STEPS)
def test_nothing_fires_that_was_never_seen(gaps: list[tuple[float, bool | None]]) -> None:
    at, alert = 0.0, machine(0.0)
    for gap, seen in gaps:
        at += gap
        assert alert.step(at, None if seen else seen) is INACTIVE
