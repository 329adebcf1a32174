"""The simulator against recordings of a real vLLM; the table in its README comes from the same code."""

from __future__ import annotations

import pytest
from compare_recordings import CASES, Case, compare, misses

SLOWER_MACHINE = Case("kv_storm", 1, waiting=False)
"""Compared with its arrivals as recorded only to say why that is no comparison."""


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case.name}-{case.phase}") for case in CASES if case != SLOWER_MACHINE])
def test_steady_part_is_within_the_bars(case):
    recorded, model = compare(case)
    assert misses(case, recorded, model) == [], f"recorded {recorded}, simulated {model}"


def test_storm_that_differs_was_recorded_on_a_machine_that_did_less():
    recorded, model = compare(SLOWER_MACHINE)
    assert recorded.waiting > 50, "an overload there"
    assert model.waiting < 20, "none here"
    assert recorded.generated_per_second < 0.8 * model.generated_per_second


def test_bars_are_crossed_by_a_model_that_is_wrong():
    case = next(case for case in CASES if case.name == "storm_mfu")
    healthy = next(case for case in CASES if case.name == "healthy_steady")
    storm, _ = compare(case)
    calm, _ = compare(healthy)
    assert misses(case, storm, calm) == ["running", "tokens_per_step", "preemption_ratio", "waiting", "usage"]
