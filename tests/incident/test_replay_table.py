"""The table of a replay: which rows are one span, and how it is drawn on a narrow terminal."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from rich.console import Console

from kvwatch.incident.replay import ReplayRow
from kvwatch.incident.table import render, spans
from kvwatch.model import Assessment, Cause, EngineId, State, Verdict

STATE_OF = {Cause.OK: State.HEALTHY, Cause.IDLE: State.HEALTHY, Cause.PREEMPTING: State.KV_BOUND}


def row(t, cause, evidence="12 preemptions in 30 s: 25 % of the requests that left the running batch were preempted"):
    verdict = Verdict(EngineId("demo-8b", "0"), STATE_OF[cause], cause, (evidence,), t)
    return ReplayRow(t, "vllm", Assessment(verdict, None), ())


def told(*spells):
    """Stretches of ``(cause, seconds)``, one row a second."""
    rows, t = [], 0.0
    for cause, seconds in spells:
        rows += [row(t + second, cause) for second in range(seconds)]
        t += seconds
    return [(one.cause, one.start, one.end) for one in spans(rows)]


@pytest.mark.parametrize(
    ("spells", "expected"),
    [
        pytest.param([(Cause.OK, 10), (Cause.PREEMPTING, 5)], [(Cause.OK, 0, 9), (Cause.PREEMPTING, 10, 14)], id="a change"),
        pytest.param([(Cause.OK, 10), (Cause.IDLE, 5), (Cause.OK, 10)], [(Cause.OK, 0, 24)], id="a moment without work"),
        pytest.param(
            [(Cause.OK, 5), (Cause.IDLE, 5), (Cause.OK, 5), (Cause.IDLE, 5), (Cause.OK, 5)], [(Cause.OK, 0, 24)], id="several of them"
        ),
        pytest.param(
            [(Cause.OK, 10), (Cause.IDLE, 60), (Cause.OK, 10)],
            [(Cause.OK, 0, 9), (Cause.IDLE, 10, 69), (Cause.OK, 70, 79)],
            id="a minute without work",
        ),
        pytest.param(
            [(Cause.OK, 10), (Cause.PREEMPTING, 5), (Cause.OK, 10)],
            [(Cause.OK, 0, 9), (Cause.PREEMPTING, 10, 14), (Cause.OK, 15, 24)],
            id="a brief storm is never left out",
        ),
    ],
)
def test_what_is_one_stretch(spells, expected):
    assert told(*spells) == expected


def test_a_table_over_two_days_says_the_day_with_each_time_in_the_zone_asked_for():
    console = Console(width=60)
    with console.capture() as captured:
        render([row(1_767_221_990.0, Cause.OK), row(1_767_222_010.0, Cause.OK)], console, ZoneInfo("Europe/Berlin"))
    first, second, *_ = captured.get().splitlines()
    assert first.rstrip() == "vllm  2025-12-31, times in Europe/Berlin"
    assert second.startswith("12-31 23:59:50 to 01-01 00:00:10  engine 0")


def drawn(width):
    console = Console(width=width)
    with console.capture() as captured:
        render([row(0.0, Cause.OK, "3 running"), *(row(float(t), Cause.PREEMPTING) for t in range(10, 75))], console)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_on_a_narrow_terminal_the_evidence_stands_below_its_stretch():
    assert drawn(60) == [
        "vllm  1970-01-01, times in UTC",
        "00:00:00 to 00:00:00  engine 0  healthy ok  -",
        "  3 running",
        "00:00:10 to 00:01:14  engine 0  kv_bound preempting  -",
        "  12 preemptions in 30 s: 25 % of the requests that left the",
        "  running batch were preempted",
    ]


def test_on_a_wide_one_beside_it():
    assert [line.split()[:4] for line in drawn(160)[2:4]] == [
        ["00:00:00", "00:00:00", "0", "healthy"],
        ["00:00:10", "00:01:14", "0", "kv_bound"],
    ]
