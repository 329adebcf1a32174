"""How many sequences a pool holds must not depend on how many happen to run when it is asked."""

from __future__ import annotations

import pytest

from kvwatch.capacity.concurrency import SequenceSizes, concurrency_limit


def held(shared: float, own: float, output: float, running: int) -> float:
    """KV tokens held for each of so many running sequences, halfway through their output, that share a beginning."""
    return (shared + running * (own + output / 2)) / running


@pytest.mark.parametrize("running", [6, 8, 12, 20, 60])
@pytest.mark.parametrize(
    ("pool", "shared", "own", "output", "fit"),
    [
        pytest.param(5632, 1984, 166, 150, 11, id="as on a real server: 5632 - 1984 ÷ 316"),
        pytest.param(29_984, 8000, 300, 340, 34, id="a long system prompt: 21 984 ÷ 640"),
        pytest.param(400_000, 1500, 500, 300, 498, id="a large pool and a short one: 398 500 ÷ 800"),
        pytest.param(9000, 8000, 300, 340, 1, id="little beside the system prompt: 1000 ÷ 640"),
    ],
)
def test_a_shared_beginning_is_held_once_however_many_run(*, pool: int, shared: int, own: int, output: int, fit: int, running: int) -> None:
    each = held(shared, own, output, running)
    found = concurrency_limit(pool, SequenceSizes(shared + own, output, each, prefix_hits=shared / (shared + own), running=running))
    assert found is not None
    assert found.sequences == fit


@pytest.mark.parametrize("running", [4, 8, 16])
def test_two_beginnings_are_held_twice(running: int) -> None:
    # half of the sequences share 1000 tokens, the others another 1000; each adds 200 and gets 100: (10 000 - 2000) ÷ 300
    each = held(2000, 200, 100, running)
    found = concurrency_limit(10_000, SequenceSizes(1200, 100, each, prefix_hits=1000 / 1200, running=running))
    assert found is not None
    assert found.sequences == 26


@pytest.mark.parametrize(
    ("hits", "each"),
    [
        pytest.param(0.8, 1050.0, id="found in the cache, but each its own: turns of conversations"),
        pytest.param(0.1, 300.0, id="hardly anything is found: those that run are young"),
    ],
)
def test_what_each_holds_for_itself_is_not_shared(hits: float, each: float) -> None:
    sizes = SequenceSizes(1000, 100, each, prefix_hits=hits, running=10)
    assert sizes.shared is None
    found = concurrency_limit(11_000, sizes)
    assert found is not None
    assert found.sequences == 10  # 1100 at the end


def test_a_request_takes_its_part_of_what_is_shared() -> None:
    # 11 fit beside the 2000 that all share, at 300 each: of the 5300 tokens each takes 300 + 2000 / 11
    sizes = SequenceSizes(2200, 100, held(2000, 200, 100, 8), prefix_hits=2000 / 2200, running=8)
    assert sizes.part_of(5300) == pytest.approx(300 + 2000 / 11)
    assert sizes.part_of(1900) == pytest.approx(300)  # not even the beginning fits
