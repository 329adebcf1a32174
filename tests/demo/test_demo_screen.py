"""The live picture fits the terminal and shows the news."""

from __future__ import annotations

import pytest
from rich.console import Console

from kvwatch.demo.acts import SCENARIOS
from kvwatch.demo.screen import Screen, ScreenLine
from kvwatch.demo.stage import Frame
from kvwatch.model import Assessment, Cause, EngineId, Signals, State, TargetView, Verdict, Window

STORM = SCENARIOS["story"][2]
STATUS_LINE, CURSOR = 1, 1


def nothing(seconds):
    return Window(seconds=seconds, samples=1)


def moment():
    signals = Signals(at=0.0, recent=nothing(10.0), fast=nothing(30.0), slow=nothing(120.0), kv_usage=0.95, running=24.0, waiting=36.0)
    verdict = Verdict(EngineId("demo-8b", "0"), State.KV_BOUND, Cause.PREEMPTING, (), 0.0)
    return Frame(STORM, 0.5, TargetView("simulated-vllm", "http://sim", 5.0, at=0.0, assessments=(Assessment(verdict, signals),)))


def drawn(screen, width, height, news):
    console = Console(width=width, height=height, legacy_windows=False)
    with console.capture() as captured:
        console.print(screen.picture(moment(), news))
    return captured.get().splitlines()


@pytest.mark.parametrize(("width", "height"), [(100, 40), (100, 24), (60, 40), (60, 20), (58, 18)])
def test_the_picture_fits_and_the_latest_line_is_on_it(width, height):
    said = [
        ScreenLine(f"number {number} of what kvwatch has said, long enough to take two rows on most terminals", "") for number in range(20)
    ]
    picture = drawn(Screen("http://127.0.0.1:20058"), width, height, said)
    assert len(picture) + STATUS_LINE + CURSOR <= height
    assert max(map(len, picture)) == width
    assert any("number 19 of what" in row for row in picture)


def test_the_numbers_stand_side_by_side_on_a_narrow_terminal():
    picture = "\n".join(drawn(Screen("http://127.0.0.1:20058"), 60, 24, []))
    assert "kv_bound / preempting " in picture
    assert " 95%   TTFT P95 - " in picture
    assert "running 24   waiting 36   preempted -   0 tokens/s" in picture


def test_a_long_line_goes_on_below_its_own_beginning():
    rows = drawn(Screen("http://127.0.0.1:20058"), 60, 24, [ScreenLine("word " * 20, "")])
    assert [row.startswith("│   word") for row in rows if "word" in row] == [True, True]
