"""What pages: the numbers of both windows, and nothing beside another state."""

from __future__ import annotations

import pytest
from builders import signals

from kvwatch.classifier.preemption import is_storm
from kvwatch.config.policy import Policy, Thresholds


def windows(slow, fast, preemptions):
    return signals(every={"preemption_ratio": slow, "preemptions": preemptions}, fast={"preemption_ratio": fast})


@pytest.mark.parametrize(
    ("numbers", "storm"),
    [
        pytest.param(windows(0.11, 0.11, 5.0), True, id="just over the ratio with five preemptions"),
        pytest.param(windows(0.10, 0.50, 50.0), False, id="slow exactly 10 percent"),
        pytest.param(windows(0.50, 0.10, 50.0), False, id="fast exactly 10 percent: the storm is over"),
        pytest.param(windows(0.50, 0.50, 4.0), False, id="four preemptions"),
        pytest.param(windows(1.0, 1.0, 9.0), True, id="nothing finishes"),
        pytest.param(windows(0.08, 0.60, 90.0), False, id="a blip after two busy minutes"),
        pytest.param(windows(None, None, 0.0), False, id="idle: no denominator"),
        pytest.param(windows(0.5, None, 20.0), False, id="nothing ran in the last 30 s"),
        pytest.param(windows(None, None, None), None, id="preemptions not reported"),
    ],
)
def test_a_storm_needs_both_windows_above_the_ratio_and_five_preemptions(numbers, storm):
    assert is_storm(numbers, Policy()) is storm


def test_the_policy_moves_the_thresholds():
    strict = Policy(thresholds=Thresholds(storm_ratio=0.3, storm_min_preemptions=50))
    assert (is_storm(windows(0.3, 0.5, 50.0), strict), is_storm(windows(0.31, 0.31, 49.0), strict)) == (False, False)
    assert is_storm(windows(0.31, 0.31, 50.0), strict)
