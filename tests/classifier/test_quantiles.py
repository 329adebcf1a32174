from __future__ import annotations

import pytest
from builders import histogram

from kvwatch.classifier.quantiles import quantiles_between

BOUNDS = (0.1, 0.5, 1.0)
EMPTY = histogram(0, 0, 0, 0, bounds=BOUNDS, total=0.0)


@pytest.mark.parametrize(
    ("counts", "p50", "p95"),
    [
        # 100 observations, all between 0.1 and 0.5: the median lies in the middle of that bucket.
        pytest.param((0, 100, 100, 100), 0.3, 0.48, id="linear inside one bucket"),
        # rank 50 is the upper edge of the first bucket; rank 95 is 45 of the 50 between 0.5 and 1.0.
        pytest.param((50, 50, 100, 100), 0.1, 0.95, id="edge of a bucket, then over an empty one"),
        # Above the highest finite edge nothing is known but that edge, as in PromQL.
        pytest.param((0, 0, 0, 100), 1.0, 1.0, id="everything in +Inf"),
    ],
)
def test_quantiles_are_those_of_histogram_quantile(counts, p50, p95):
    found = quantiles_between(EMPTY, histogram(*counts, bounds=BOUNDS, total=30.0))
    assert (found.p50, found.p95, found.count, found.mean) == (pytest.approx(p50), pytest.approx(p95), 100, pytest.approx(0.3))


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param(None, EMPTY, id="missing before"),
        pytest.param(EMPTY, None, id="missing now"),
        pytest.param(EMPTY, EMPTY, id="nothing observed"),
        pytest.param(EMPTY, histogram(1, 1, 1, bounds=(0.1, 0.5)), id="other edges"),
        pytest.param(histogram(5, 5, 5, 5, bounds=BOUNDS), histogram(4, 6, 6, 6, bounds=BOUNDS), id="a bucket went back"),
    ],
)
def test_a_window_that_says_nothing_has_no_quantiles(first, last):
    assert quantiles_between(first, last) is None


@pytest.mark.parametrize(("before", "after", "mean"), [(50.0, 52.0, 0.2), (50.0, 50.0, 0.0), (None, 52.0, None), (50.0, None, None)])
def test_the_mean_is_what_the_sum_gained_of_each(before, after, mean):
    found = quantiles_between(histogram(0, 0, 0, total=before), histogram(10, 10, 10, total=after))
    assert (found.p50, found.mean) == (0.5, mean)


def test_a_histogram_without_edges_has_its_quantiles_nowhere():
    found = quantiles_between(histogram(0, bounds=(), total=0.0), histogram(10, bounds=(), total=5.0))
    assert (found.p50, found.p99, found.mean) == (0.0, 0.0, 0.5)


@pytest.mark.parametrize(
    ("third", "p99"),
    [
        pytest.param(100, 0.95, id="nine of the ten between 0.5 and 1.0"),
        pytest.param(99, 1.0, id="the last of the nine"),
    ],
)
def test_the_slowest_hundredth(third, p99):
    found = quantiles_between(EMPTY, histogram(0, 90, third, 100, bounds=BOUNDS, total=30.0))
    assert found.p99 == pytest.approx(p99)


def test_a_sum_that_went_back_costs_the_mean_and_nothing_else():
    """VLLM subtracts unguarded clocks, so `_sum` may fall without a restart."""
    found = quantiles_between(histogram(0, 0, 0, total=50.0), histogram(10, 10, 10, total=-3.0))
    assert (found.mean, found.count) == (None, 10)
