"""Which number and which lever is said when the evidence moves."""

from __future__ import annotations

import pytest

from kvwatch.advice.steady import HOLD_SECONDS, SteadyAdvice
from kvwatch.model import Cause, Change, State, Verdict

GIVEN = "the configuration"
PREEMPTING = Verdict(None, State.KV_BOUND, Cause.PREEMPTING, (), 0.0)
ADMISSION = Verdict(None, State.KV_BOUND, Cause.ADMISSION, (), 0.0)


def change(lever, proposed):
    return Change(lever=lever, current=None, proposed=proposed, reason=f"why {proposed}", effect="effect", caution="caution")


def seqs(number):
    return change("--max-num-seqs", None if number is None else str(number))


def said(series, given=lambda _: GIVEN, verdict=lambda _: PREEMPTING):
    """What is said at each of *series*, pairs of seconds and changes."""
    steady = SteadyAdvice()
    return [steady.settle(at, verdict(at), changes, given(at)) for at, changes in series]


def numbers(series, **how):
    return [changes[0].proposed for changes in said(((at, (seqs(number),)) for at, number in series), **how)]


@pytest.mark.parametrize(
    ("name", "series", "expected"),
    [
        ("neighbours are one number", [(t, 12 + t // 5 % 3) for t in range(0, 600, 5)], {"12"}),
        ("a quarter more, for as long as the hold", [(0, 12), *((t, 15) for t in range(5, 130, 5))], {"12", "15"}),
        ("a quarter more, but not long enough", [(0, 12), *((t, 15) for t in range(5, 120, 5))], {"12"}),
        ("a spell within the band starts the hold anew", [(t, 20 if t % 100 else 12) for t in range(0, 600, 5)], {"12"}),
        ("from few, one more or fewer is no other number", [(t, 3 - t // 5 % 2) for t in range(0, 600, 5)], {"3"}),
        ("two fewer of few is another one", [(0, 4), *((t, 2) for t in range(5, 200, 5))], {"4", "2"}),
    ],
)
def test_a_number_stands_within_a_quarter_and_for_two_minutes(name, series, expected):
    assert set(numbers(series)) == expected, name


def test_the_other_number_is_said_when_the_hold_ends_and_not_before():
    series = [(0, 12), *((t, 20) for t in range(10, 200, 10))]
    found = numbers(series)
    assert next(at for (at, _), number in zip(series, found, strict=True) if number == "20") == 10 + HOLD_SECONDS


def test_a_number_takes_the_place_of_none_at_once():
    assert numbers([(0, None), (5, 12), (10, None)]) == [None, "12", "12"]


def test_a_number_that_comes_and_goes_does_not_once_none_has_stood_for_two_minutes():
    # a queue of about four times what may run: with a number now and then, and mostly none
    series = [(t, 4 if t >= 130 and t // 5 % 2 else None) for t in range(0, 600, 5)]
    assert set(numbers(series)) == {None}


def test_a_lever_not_advised_for_longer_than_the_hold_is_forgotten():
    series = [(0, (seqs(12),)), (5, ()), (5 + HOLD_SECONDS, (seqs(14),))]
    assert said(series)[-1][0].proposed == "14"


def test_another_configuration_forgets_what_was_said():
    assert numbers([(0, 12), (5, 13), (10, 13)], given=lambda at: at >= 10) == ["12", "12", "13"]


MEMORY, SLOTS = change("--gpu-memory-utilization", "0.95"), seqs(12)


@pytest.mark.parametrize(
    ("name", "series", "verdict", "first"),
    [
        (
            "two levers in turn leave the first first",
            [(t, (SLOTS, MEMORY) if t // 5 % 2 == 0 else (MEMORY, SLOTS)) for t in range(0, 600, 5)],
            lambda _: PREEMPTING,
            ["--max-num-seqs"] * 120,
        ),
        (
            "the first stays although the moment does not ask for it",
            [(0, (SLOTS, MEMORY)), (5, (MEMORY,)), (10, ())],
            lambda _: PREEMPTING,
            ["--max-num-seqs"] * 3,
        ),
        (
            "another lever that comes first for long enough is first",
            [(0, (SLOTS, MEMORY)), (5, (MEMORY,)), (5 + HOLD_SECONDS, (MEMORY,))],
            lambda _: PREEMPTING,
            ["--max-num-seqs", "--max-num-seqs", "--gpu-memory-utilization"],
        ),
        (
            "another cause has its own first lever at once",
            [(0, (SLOTS, MEMORY)), (5, (MEMORY,))],
            lambda at: PREEMPTING if at == 0 else ADMISSION,
            ["--max-num-seqs", "--gpu-memory-utilization"],
        ),
    ],
)
def test_what_comes_first_stays_first(name, series, verdict, first):
    assert [changes[0].lever for changes in said(series, verdict=verdict)] == first, name


def test_advice_that_ends_is_gone_after_the_hold():
    assert said([(0, (SLOTS,)), (5, ()), (5 + HOLD_SECONDS, ())]) == [(SLOTS,), (SLOTS,), ()]
