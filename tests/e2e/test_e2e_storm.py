"""A real vLLM's storm to the pager, and a brief one to its end, by both roads; calm servers beside them say nothing.

About three minutes of real time. What takes longer is in ``long_storms.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from e2e_measure import Legs
from e2e_stack import CLOCK, Stack, wait_for
from e2e_targets import Phase, Targets, preemptions, recorded, scripted, serving

pytestmark = pytest.mark.e2e

RECORDING: Final = "kv_storm"
SKIP: Final = 30.0  # of its 42 calm seconds
CALM: Final = ("healthy_steady", "kv_full_but_fine", "healthy_bursts")
BRIEF: Final = (
    Phase(15.0, running=4, finished=3.5),
    Phase(40.0, running=30, waiting=12, kv_usage=0.97, finished=3.5, preempted=2.0),
    Phase(1e9, running=4, finished=3.5),
)


@pytest.fixture
def targets() -> Iterator[Targets]:
    with serving(storm=recorded(RECORDING, SKIP), brief=scripted(*BRIEF), **{name: recorded(name) for name in CALM}) as found:
        yield found


@pytest.fixture
def stack(require_tool: Callable[[str], Path], targets: Targets, tmp_path: Path) -> Iterator[Stack]:
    running = Stack(require_tool, tmp_path, targets)
    yield running
    running.close()


def test_storms_page_by_both_roads_and_end_and_calm_servers_say_nothing(
    stack: Stack, targets: Targets, capsys: pytest.CaptureFixture[str]
) -> None:
    first = targets.started + preemptions(RECORDING)[0] - SKIP
    storm = Legs(stack, "storm")
    wait_for("the page by both roads", storm.reached("rule", "firing by prometheus", "firing by push"), first + 120 - CLOCK.monotonic())
    onset = storm.since(first)

    last = targets.started + BRIEF[0].seconds + BRIEF[1].seconds
    brief = Legs(stack, "brief")
    wait_for("the end by both roads", brief.reached("resolved by prometheus", "resolved by push"), last + 180 - CLOCK.monotonic())
    end = brief.since(last, "resolved by prometheus", "resolved by push")

    with capsys.disabled():
        sys.stderr.write(f"\nseconds from the first preemption: {onset}; from the last: {end}\n")
    assert onset["firing by prometheus"] <= 120
    assert onset["firing by push"] <= 90

    _, by_prometheus = stack.webhook.of("prometheus", "pager", target="storm", status="firing")[0]
    _, by_push = stack.webhook.of("push", "pager", target="storm", status="firing")[0]
    common = {
        "alertname": "KVWatchPreemptionStorm",
        "severity": "critical",
        "priority": "P1",
        "namespace": "llm",
        "pod": "vllm-0",
        "target": "storm",
        "model_name": "demo-8b",
        "engine": "0",
    }
    # Without Prometheus nobody else says whose kvwatch this is: the push names its own host and port.
    assert by_push["labels"] == {**common, "instance": by_push["labels"]["instance"]}
    assert by_push["labels"]["instance"].endswith(stack.kvwatch_url.rpartition(":")[2])
    assert by_prometheus["labels"] == {**common, "job": "kvwatch", "instance": stack.kvwatch_url.removeprefix("http://")}
    for alert in (by_prometheus, by_push):
        description = alert["annotations"]["description"]
        assert description.startswith("Engine 0 of demo-8b")
        assert " preemptions in " in description
        assert " First: let fewer requests in" in description

    pages = {
        (alert["labels"]["target"], alert["labels"]["alertname"])
        for road in ("prometheus", "push")
        for _, alert in stack.webhook.of(road, "pager")
    }
    assert pages == {(name, "KVWatchPreemptionStorm") for name in ("storm", "brief")}
    for road in ("prometheus", "push"):
        for name in CALM:
            assert stack.webhook.of(road, "chat", target=name) == []
    # Firing was told once by each road, not again and again.
    assert len(stack.webhook.of("push", "pager", target="storm", status="firing")) == 1

    wait_for("a scrape after the posts", lambda: counted(stack, "kvwatch_alertmanager_notifications_total") > [1.0], 30)
    assert counted(stack, "kvwatch_alertmanager_notifications_failed_total") == [0.0]


def counted(stack: Stack, name: str) -> list[float]:
    return [float(sample["value"][1]) for sample in stack.query(name)]
