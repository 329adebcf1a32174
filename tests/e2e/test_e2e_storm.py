"""A real vLLM's storm, from its first eviction to the pager, by both roads; three calm servers beside it say nothing.

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
from e2e_targets import Targets, evictions, recorded, serving

pytestmark = pytest.mark.e2e

SKIP: Final = 22.0
RECORDING: Final = "kv_admission_rag"
CALM: Final = ("healthy_steady", "kv_full_but_fine", "healthy_bursts")


@pytest.fixture
def targets() -> Iterator[Targets]:
    with serving(storm=recorded(RECORDING, SKIP), **{name: recorded(name) for name in CALM}) as found:
        yield found


@pytest.fixture
def stack(require_tool: Callable[[str], Path], targets: Targets, tmp_path: Path) -> Iterator[Stack]:
    running = Stack(require_tool, tmp_path, targets)
    yield running
    running.close()


def test_a_recorded_storm_pages_by_both_roads_and_ends_and_calm_servers_say_nothing(
    stack: Stack, targets: Targets, record_property, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = (targets.started + second - SKIP for second in evictions(RECORDING))
    legs = Legs(stack, "storm")

    wait_for("the page by both roads", legs.reached("rule", "firing by prometheus", "firing by push"), first + 120 - CLOCK.monotonic())
    wait_for("the end by push", legs.reached("resolved by push"), last + 180 - CLOCK.monotonic())

    onset = legs.since(first, "kvwatch", "scrape", "rule", "firing by prometheus", "firing by push")
    record_property("onset", onset)
    with capsys.disabled():
        sys.stderr.write(f"\nseconds from the first eviction: {onset}; from the last: {legs.since(last, 'resolved by push')}\n")
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
    assert by_push["labels"] == common
    assert by_prometheus["labels"] == {**common, "job": "kvwatch", "instance": stack.kvwatch_url.removeprefix("http://")}
    for alert in (by_prometheus, by_push):
        description = alert["annotations"]["description"]
        assert description.startswith("Engine 0 of demo-8b")
        assert " evictions in " in description
        assert " First: let fewer requests in" in description

    pages = {
        (alert["labels"]["target"], alert["labels"]["alertname"])
        for road in ("prometheus", "push")
        for _, alert in stack.webhook.of(road, "pager")
    }
    assert pages == {("storm", "KVWatchPreemptionStorm")}
    for road in ("prometheus", "push"):
        for name in CALM:
            assert stack.webhook.of(road, "chat", target=name) == []
    # Firing was told once by each road, not again and again.
    assert len(stack.webhook.of("push", "pager", target="storm", status="firing")) == 1

    wait_for("a scrape after the posts", lambda: counted(stack, "kvwatch_alertmanager_notifications_total") > [1.0], 30)
    assert counted(stack, "kvwatch_alertmanager_notifications_failed_total") == [0.0]


def counted(stack: Stack, name: str) -> list[float]:
    return [float(sample["value"][1]) for sample in stack.query(name)]
