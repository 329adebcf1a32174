"""How many sequences of varied length fit: by what they hold at any moment, and by what their sum varies."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwatch.capacity.concurrency import SequenceSizes, concurrency_limit
from kvwatch.capacity.spread import SPREAD, Held, Moments, equally_long, held_while_growing

TWO_KINDS = Moments(200.0, 50_000.0, 14e6)
"""Answers of 100 and of 300 tokens, as many of the one as of the other."""


def test_a_long_answer_is_met_more_often_and_anywhere_in_it() -> None:
    # 50 000 ÷ 400 = 125 grown, 14e6 ÷ 600 - 125² = 7 708; half a block of 32 besides
    found = held_while_growing(300, 0, TWO_KINDS, 32)
    assert found.mean == pytest.approx(300 + 125 + 16)
    assert found.deviation == pytest.approx(math.sqrt(23_333.33 - 15_625), rel=1e-4)


def test_varied_prompts_add_to_it() -> None:
    assert held_while_growing(300, 100.0**2, TWO_KINDS, 0).deviation == pytest.approx(math.sqrt(7708.33 + 10_000), rel=1e-4)


@pytest.mark.parametrize(
    ("pool", "sizes", "fit"),
    [
        # 9 × 441 + 2.5 × 87.8 × √9 = 4 628 fit 5 088, 10 × 441 + 2.5 × 87.8 × √10 = 5 104 do not
        pytest.param(5088, SequenceSizes(300, 200, 400, block_size=32, outputs=TWO_KINDS), 9, id="two kinds of answers"),
        pytest.param(5088, SequenceSizes(300, 200, 400, block_size=32), 9, id="equally long: all at their end at once, 5 088 ÷ 512"),
        # equally long, and near their end together: 600 held are no longer requests, 5 088 ÷ 512; 5 088 ÷ 700 where nobody knows
        pytest.param(
            5088,
            SequenceSizes(300, 200, 600, block_size=32, prompts=equally_long(300), outputs=equally_long(200)),
            9,
            id="known to be equally long",
        ),
        pytest.param(5088, SequenceSizes(300, 200, 600, block_size=32), 7, id="maybe longer than those that finished"),
        # 600 held is more than 441: 7 × 600 + 581 = 4 781, 8 × 600 + 621 = 5 421
        pytest.param(5088, SequenceSizes(300, 200, 600, block_size=32, outputs=TWO_KINDS), 7, id="those that run are longer"),
        pytest.param(100, SequenceSizes(300, 200, 400, block_size=32, outputs=TWO_KINDS), 0, id="less than one"),
    ],
)
def test_as_many_as_fit(pool: int, sizes: SequenceSizes, fit: int) -> None:
    found = concurrency_limit(pool, sizes)
    assert found is not None
    assert found.sequences == fit


@given(pool=st.integers(0, 10_000_000), mean=st.floats(1, 100_000), deviation=st.floats(0, 100_000))
def test_the_number_fits_and_one_more_does_not(pool: int, mean: float, deviation: float) -> None:
    found = Held(mean, deviation).most(pool)

    def needed(sequences: int) -> float:
        return sequences * mean + SPREAD * deviation * math.sqrt(sequences)

    assert needed(found) <= pool * (1 + 1e-6) + 1e-6
    assert needed(found + 1) >= pool * (1 - 1e-6)


@given(pool=st.integers(1, 10_000_000), mean=st.floats(1, 10_000))
def test_what_does_not_vary_divides_the_pool(pool: int, mean: float) -> None:
    assert Held(mean, 0.0).most(pool) == pytest.approx(pool / mean, abs=1)
