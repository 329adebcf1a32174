from __future__ import annotations

import pytest

from kvwatch.exporter.web.blind_spots import FAILURE_WORDS
from kvwatch.exporter.web.condition import WORDS, Condition
from kvwatch.exporter.web.wording import ABSENT, duration, number, percent, seconds
from kvwatch.model import FailureReason, State


def plain(text: str) -> str:
    return text.replace("\N{NARROW NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0"), (7.0, "7"), (12.24, "12.2"), (401.5, "402"), (24_576, "24 576"), (1_234_567.8, "1 234 568"), (None, ABSENT)],
)
def test_number(value, words):
    assert plain(number(value)) == words


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.0, "0 %"), (0.004, "0.4 %"), (0.1, "10 %"), (0.9975, "100 %"), (1.33, "133 %"), (None, ABSENT)]
)
def test_percent(ratio, words):
    assert plain(percent(ratio)) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.0306, "30.6 ms"), (0.75, "750 ms"), (1.0, "1 s"), (11.25, "11.2 s"), (250.4, "250 s"), (None, ABSENT)]
)
def test_seconds(value, words):
    assert plain(seconds(value)) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-1.0, "0 s"),
        (0.4, "0 s"),
        (59.9, "59 s"),
        (60.0, "1 min"),
        (250.0, "4 min 10 s"),
        (3600.0, "1 h"),
        (3605.0, "1 h"),
        (3661.0, "1 h 1 min"),
        (90_000.0, "1 d 1 h"),
    ],
)
def test_duration(value, words):
    assert plain(duration(value)) == words


def test_every_state_cause_and_failure_has_words():
    assert set(WORDS) == set(Condition) == {*State, Condition.DOWN}
    assert set(FAILURE_WORDS) == set(FailureReason)
