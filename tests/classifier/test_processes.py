"""Who answers: start times in, whose answer it is out. Polls come every ten seconds, `None` is a page without a start time."""

from __future__ import annotations

import pytest

from kvwatch.classifier.processes import Answer, Processes, turns_window
from kvwatch.config.policy import Policy
from kvwatch.model import Scrape

SAME, RESTARTED, ANOTHER, STRAY = Answer.SAME, Answer.RESTARTED, Answer.ANOTHER, Answer.STRAY
NOW = 1_000_000.0
OLD, OLDER = NOW - 5000.0, NOW - 9000.0


def told(starts, window=120.0, seconds=10.0):
    """What is said of each poll: the answer, and whether several processes answer."""
    processes, said, before = Processes(window), [], 0.0
    for number, start in enumerate(starts):
        at = number * seconds
        said.append((processes.look(Scrape(at, (), unix=NOW + at, process_start_time=start)), processes.alternate(at)))
        before = at
    assert before == (len(starts) - 1) * seconds
    return said


@pytest.mark.parametrize(
    ("starts", "answers"),
    [
        pytest.param([OLD, OLD, OLD], [SAME] * 3, id="one"),
        pytest.param([None, None], [SAME] * 2, id="a page without a start"),
        pytest.param([OLD, None, OLD], [SAME] * 3, id="a page that once lacks it"),
        pytest.param([OLD, OLD + 0.9, OLD], [SAME] * 3, id="a start that trembles by less than a second"),
        pytest.param([OLD, OLD + 1.0], [SAME] * 2, id="by a second"),
        pytest.param([OLD, NOW + 5.0, NOW + 5.0], [SAME, RESTARTED, SAME], id="started between two polls"),
        pytest.param([OLD, NOW, NOW], [SAME, RESTARTED, SAME], id="started at the last poll"),
        pytest.param([OLD, NOW - 1.0, NOW - 1.0], [SAME, RESTARTED, SAME], id="a second before it: clocks differ by so much"),
        pytest.param([OLD, NOW - 1.1, NOW - 1.1], [SAME, ANOTHER, SAME], id="before it: it has counted all the while"),
        pytest.param([OLD, OLDER, OLD], [SAME, STRAY, SAME], id="an older one, once"),
        pytest.param([OLD, OLDER, OLDER, OLD], [SAME, STRAY, STRAY, SAME], id="an older one, twice"),
        pytest.param([OLD, OLDER, OLDER, OLDER, OLDER], [SAME, STRAY, STRAY, ANOTHER, SAME], id="an older one that stays"),
        pytest.param(
            [OLD, NOW + 5.0, OLD, OLD, OLD], [SAME, RESTARTED, STRAY, STRAY, ANOTHER], id="the one of before a restart comes back"
        ),
        pytest.param([OLD, *[OLDER] * 3, *[OLDER - 50.0] * 3], [SAME, STRAY, STRAY, ANOTHER, STRAY, STRAY, ANOTHER], id="ever older ones"),
    ],
)
def test_whose_answer_a_scrape_is(starts, answers):
    assert [answer for answer, _ in told(starts)] == answers


@pytest.mark.parametrize(
    ("starts", "several"),
    [
        pytest.param([OLD] * 4, [False] * 4, id="one"),
        pytest.param([OLD, NOW + 5.0, NOW + 5.0], [False] * 3, id="a restart"),
        pytest.param([OLD, OLDER, OLD, OLD, OLD], [False, True, True, True, False], id="until three answers in a row are one's"),
        pytest.param([OLD, OLDER, OLD, OLDER, OLD, OLDER], [False, *[True] * 5], id="in turn"),
    ],
)
def test_whether_several_answer(starts, several):
    assert [now for _, now in told(starts)] == several


@pytest.mark.parametrize(("window", "several"), [(40.0, True), (39.0, False)])
def test_three_turns_within_the_window_are_several_even_while_one_answers_for_a_while(window, several):
    # Turns (answers of one known before) at 20, 30 and 40 s; then the same one at 50 and 60 s.
    assert told([OLD, OLDER, OLD, OLDER, OLD, OLD, OLD], window)[-1][1] is several


@pytest.mark.parametrize(("interval", "window"), [(1.0, 120.0), (15.0, 120.0), (20.0, 160.0)])
def test_turns_are_remembered_for_the_slow_window_or_eight_polls(interval, window):
    assert turns_window(Policy(), interval) == window


def test_only_turns_count_not_first_answers():
    # At 10, 20, 30 s three processes answer for the first time: none of them is a turn.
    starts = [OLD, OLDER, OLDER - 100.0, OLDER - 200.0, OLDER - 200.0, OLDER - 200.0]
    assert told(starts)[-1][1] is False
