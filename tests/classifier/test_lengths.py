"""How lengths vary, from the buckets of a histogram."""

from __future__ import annotations

import pytest

from kvwatch.capacity.spread import Moments
from kvwatch.classifier.lengths import moments_of
from kvwatch.model import Histogram


def lengths(counts, total, bounds=(100.0, 200.0, 500.0)):
    """Not cumulative *counts* of the buckets and of what is above them."""
    return Histogram(bounds, [float(sum(counts[: place + 1])) for place in range(len(counts))], total)


EMPTY = lengths([0, 0, 0, 0], 0.0)


@pytest.mark.parametrize(
    ("counts", "total"),
    [
        pytest.param([0, 40, 0, 0], 8000.0, id="one length"),
        pytest.param([2, 37, 1, 0], 8000.0, id="nearly all in one bucket"),
    ],
)
def test_lengths_in_one_bucket_do_not_vary(counts, total):
    for first in (EMPTY, None):
        found = moments_of(first, lengths(counts, total))
        assert (found.mean, found.variance) == (200.0, 0.0)


@pytest.mark.parametrize(
    ("counts", "total"),
    [
        pytest.param([4, 5, 0, 0], 900.0, id="too few to tell"),
        pytest.param([0, 0, 0, 0], 0.0, id="none"),
    ],
)
def test_too_few_requests_tell_nothing(counts, total):
    assert moments_of(EMPTY, lengths(counts, total)) is None
    assert moments_of(None, lengths(counts, total)) is None


def test_inside_a_bucket_lengths_are_spread_evenly():
    # half in 0..100 and half in 100..200 is evenly in 0..200: 200² ÷ 3 and 200³ ÷ 4, at a mean of 100
    found = moments_of(EMPTY, lengths([20, 20, 0, 0], 4000.0))
    assert (found.mean, found.squares, found.cubes) == pytest.approx((100.0, 40_000 / 3, 2_000_000))
    assert found.variance == pytest.approx(200**2 / 12)


def test_they_are_scaled_to_the_mean_that_is_known():
    found = moments_of(EMPTY, lengths([20, 20, 0, 0], 4800.0))
    assert (found.mean, found.squares, found.cubes) == pytest.approx((120.0, 40_000 / 3 * 1.44, 2_000_000 * 1.728))


@pytest.mark.parametrize("total", [None, -5.0])
@pytest.mark.parametrize("before", [EMPTY, None], ids=["of a window", "since the start"])
def test_without_a_sum_the_buckets_tell_the_mean(before, total):
    assert moments_of(before, lengths([20, 20, 0, 0], total)).mean == pytest.approx(100.0)


def test_answers_of_one_token_are_one_token_long():
    """A prefill server of a pair: all are in the first bucket, up to 1."""
    found = moments_of(EMPTY, lengths([40, 0, 0], 40.0, bounds=(1.0, 2.0)))
    assert (found.mean, found.variance) == (1.0, 0.0)


def test_a_bucket_of_no_length_tells_none():
    assert moments_of(None, lengths([40, 0], None, bounds=(0.0,))) is None


def test_what_is_above_the_last_edge_counts_as_that_edge():
    found = moments_of(EMPTY, lengths([20, 0, 0, 20], None))
    assert found.mean == pytest.approx((50 + 500) / 2)


def test_only_what_came_since_counts():
    first = lengths([0, 0, 1000, 0], 400_000.0)
    found = moments_of(first, lengths([20, 20, 1000, 0], 404_000.0))
    assert found.mean == pytest.approx(100.0)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(lengths([20, 20, 0, 0], 4000.0), id="nothing since"),
        pytest.param(lengths([20, 13, 0, 0], 3500.0), id="few since"),
        pytest.param(lengths([90, 20, 0, 0], 9000.0), id="it went back"),
        pytest.param(lengths([9, 9], 900.0, bounds=(50.0,)), id="other edges"),
        pytest.param(None, id="unknown before"),
    ],
)
def test_else_all_since_the_start_does(first):
    found = moments_of(first, lengths([20, 20, 0, 0], 4000.0))
    assert isinstance(found, Moments)
    assert found.mean == pytest.approx(100.0)


def test_a_page_without_the_histogram_tells_nothing():
    assert moments_of(EMPTY, None) is None
    assert moments_of(Histogram((), [5.0], 10.0), Histogram((), [50.0], 100.0)) is None
