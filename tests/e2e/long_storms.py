"""Storms that take longer than anybody waits for at every change: ``pytest tests/e2e/long_storms.py``, 26 minutes, 15 with ``-n 3``.

Not named ``test_…``, so that a plain ``pytest`` does not collect it. Every test prints its legs in seconds.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from e2e_measure import ROADS, Legs
from e2e_stack import CLOCK, Stack, wait_for
from e2e_targets import Phase, Targets, scripted, serving

pytestmark = pytest.mark.e2e

BUSY: Final = Phase(600.0, running=10, kv_usage=0.4, finished=20.0, tokens=4000.0)
QUIET: Final = Phase(30.0, running=4, kv_usage=0.3, finished=3.5, tokens=1500.0)
FOREVER: Final = 1e9


def storm(seconds: float) -> Phase:
    """2 preemptions and 3.5 finishes a second: 36 % of the leaving requests are preempted."""
    return Phase(seconds, running=30, waiting=12, kv_usage=0.97, finished=3.5, preempted=2.0, tokens=800.0)


def calm() -> Phase:
    """What comes after."""
    return Phase(FOREVER, running=4, kv_usage=0.3, finished=3.5, tokens=1500.0)


@contextmanager
def running(require_tool: Callable[[str], Path], folder: Path, *phases: Phase) -> Iterator[tuple[Targets, Stack]]:
    """A stack that watches the script under the name ``storm``, and a calm server beside it."""
    with serving(storm=scripted(*phases), beside=scripted(calm())) as targets:
        stack = Stack(require_tool, folder, targets)
        try:
            yield targets, stack
        finally:
            stack.close()


def tell(capsys: pytest.CaptureFixture[str], what: str, **legs: Any) -> None:
    """Print a measurement past pytest's capture."""
    with capsys.disabled():
        sys.stderr.write(f"\n{what}: " + "; ".join(f"{name} {value}" for name, value in legs.items()) + "\n")


def still(stack: Stack, seconds: float) -> None:
    """Wait, and fail at once if anybody is told of an end."""
    end = CLOCK.monotonic() + seconds

    def over() -> bool:
        told = {road: stack.webhook.of(road, "pager", status="resolved") for road in ROADS}
        assert not any(told.values()), told
        return CLOCK.monotonic() > end

    wait_for("the time to pass", over, seconds + 10)


def test_after_ten_minutes_of_20_healthy_requests_a_second(
    require_tool: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(require_tool, tmp_path, BUSY, storm(200.0), calm()) as (targets, stack):
        first = targets.started + BUSY.seconds
        last = first + 200.0
        still(stack, first - CLOCK.monotonic())
        assert stack.webhook.arrivals == []

        legs = Legs(stack, "storm")
        wait_for("the page", legs.reached("kvwatch", "scrape", "rule", "firing by prometheus", "firing by push"), 125)
        onset = legs.since(first)
        tell(capsys, "after ten busy minutes, from the onset", **onset)
        assert onset["firing by prometheus"] <= 120
        assert onset["firing by push"] <= 90

        still(stack, last - CLOCK.monotonic())
        wait_for("the end", legs.reached("resolved by prometheus", "resolved by push"), 185)
        end = legs.since(last, "resolved by prometheus", "resolved by push")
        tell(capsys, "from the last preemption", **end)
        assert max(end.values()) <= 180
        pages = {alert["labels"]["target"] for road in ROADS for _, alert in stack.webhook.of(road, "pager")}
        assert pages == {"storm"}


def test_alertmanagers_that_are_down_when_it_begins_and_die_again_after_the_page(
    require_tool: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(require_tool, tmp_path, QUIET, storm(FOREVER)) as (targets, stack):
        first = targets.started + QUIET.seconds
        legs = Legs(stack, "storm")
        wait_for("the onset", lambda: CLOCK.monotonic() > first, 60)
        for program in (stack.by_prometheus, stack.by_push):
            program.stop(signal.SIGKILL)
        wait_for("kvwatch and the rule fire", legs.reached("kvwatch", "rule"), 120)
        wait_for("an outage of a minute", lambda: CLOCK.monotonic() > legs.seen["kvwatch"] + 60, 120)
        assert stack.webhook.arrivals == []

        for program in (stack.by_prometheus, stack.by_push):
            program.start()
        back = CLOCK.monotonic()
        wait_for("the page after the outage", legs.reached("firing by prometheus", "firing by push"), 90)
        tell(capsys, "from the return of the Alertmanagers", **legs.since(back, "firing by prometheus", "firing by push"))

        for program in (stack.by_prometheus, stack.by_push):
            program.stop(signal.SIGKILL)
            program.start()
        again = CLOCK.monotonic()

        def told_again() -> dict[str, float]:
            return {
                road: round(at - again, 1)
                for road in ROADS
                for at, _ in reversed(stack.webhook.of(road, "pager", status="firing"))
                if at > again
            }

        wait_for("the page from Alertmanagers that have forgotten", lambda: len(told_again()) == len(ROADS), 90)
        tell(capsys, "from their second return", **told_again())
        assert not any(stack.webhook.of(road, "pager", status="resolved") for road in ROADS)


def test_a_restart_of_kvwatch_in_the_storm_resolves_nothing(
    require_tool: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 300 s of storm from 30 s on: the page by 70 s, the restart, 150 s of watching, then the end.
    with running(require_tool, tmp_path, QUIET, storm(300.0), calm()) as (targets, stack):
        last = targets.started + QUIET.seconds + 300.0
        wait_for("the page", Legs(stack, "storm").reached("firing by prometheus", "firing by push"), 160)
        stack.kvwatch.stop()
        gone = CLOCK.monotonic()
        still(stack, 10.0)
        stack.kvwatch.start()

        legs = Legs(stack, "storm")
        wait_for("kvwatch fires again", legs.reached("kvwatch"), 120)
        tell(capsys, "from the end of the old kvwatch", **legs.since(gone, "kvwatch"))
        assert legs.since(gone)["kvwatch"] <= 120
        still(stack, min(150.0, last - CLOCK.monotonic()))
        firing = stack.query('ALERTS{alertname="KVWatchPreemptionStorm",alertstate="firing"}')
        assert [sample["metric"]["target"] for sample in firing] == ["storm"]

        still(stack, last - CLOCK.monotonic())
        wait_for("the end", legs.reached("resolved by prometheus", "resolved by push"), 185)
        tell(capsys, "from the last preemption", **legs.since(last, "resolved by prometheus", "resolved by push"))
