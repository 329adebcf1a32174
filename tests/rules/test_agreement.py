"""A sample of what ``agreement.py`` plays: Prometheus' rules and kvwatch's own alerts tell the same, also where polls are lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from agreement import BY_NAME, Case, disagreements, own_firing, prometheus_firing, rules_differ

RECORDINGS: Final = sorted((Path(__file__).resolve().parents[1] / "data" / "recordings").glob("*.jsonl.xz"))
DOWN: Final = RECORDINGS[0].with_name("restart_under_storm.jsonl.xz")
CASES: Final = {
    **{path.name.partition(".")[0]: Case(path) for path in RECORDINGS},
    # One cut while its server is down, so that it stays down.
    "restart_under_storm that never comes back": Case(DOWN, until=70.0),
    # One cut while its engine hangs.
    "freeze_loaded for good": Case(RECORDINGS[0].with_name("freeze_loaded.jsonl.xz"), until=70.0),
    **{
        f"{name}, {lost:.0%} of the polls lost": Case(RECORDINGS[0].with_name(f"{name}.jsonl.xz"), lost=lost, seed=7)
        for name in ("kv_storm", "kv_admission", "seq_limit", "restart_under_storm")
        for lost in (0.05, 0.2, 0.5)
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_prometheus_fires_what_kvwatch_fires(case: Case, require_tool: Callable[[str], Path]) -> None:
    assert rules_differ(case, require_tool("promtool")) == ""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_both_roads_tell_every_alert_once_and_within_one_evaluation(case: Case) -> None:
    own, other = own_firing(case), prometheus_firing(case)
    for one in own.keys() | other.keys():
        assert list(disagreements(own.get(one, []), other.get(one, []), hold=BY_NAME[one[0]].hold_seconds)) == [], one


def test_the_recordings_make_every_alert_fire() -> None:
    assert {name for case in CASES.values() for name, _, _ in prometheus_firing(case)} == set(BY_NAME) - {
        "KVWatchBaselineRegressed"
    }  # no recording has a baseline


@pytest.mark.parametrize(
    ("own", "other", "said"),
    [
        pytest.param([(0.0, 50.0)], [(15.0, 60.0)], [], id="within one evaluation"),
        pytest.param([(0.0, 50.0)], [], ["missed 0-50"], id="missed"),
        pytest.param([(0.0, 15.0)], [], [], id="over before it could be told"),
        pytest.param([], [(0.0, 50.0)], ["invented 0-50"], id="invented"),
        pytest.param([(0.0, 90.0)], [(0.0, 30.0), (45.0, 90.0)], ["split 0-90: [(0.0, 30.0), (45.0, 90.0)]"], id="split"),
        pytest.param([(0.0, 90.0)], [(20.0, 110.0)], ["begins +20 s", "ends +20 s"], id="late"),
        pytest.param([(60.0, 90.0)], [(30.0, 60.0)], ["begins -30 s", "ends -30 s"], id="soon"),
    ],
)
def test_what_disagrees_is_found(own: list[tuple[float, float]], other: list[tuple[float, float]], said: list[str]) -> None:
    assert list(disagreements(own, other)) == said
