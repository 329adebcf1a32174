"""Pool, sequences, demand and time until full, against worked-out figures."""

from __future__ import annotations

import pytest

from kvwatch.capacity.pool import (
    demand,
    memory_for_kv,
    pool_tokens,
    round_up_to_block,
    safe_sequences,
    seconds_to_full,
    sequences,
)
from kvwatch.config.policy import KnownConfig
from kvwatch.model import EngineConfig

GIB = 2**30
# What cache_config_info says on the recordings: one engine of 160 blocks, and two engines labelled with the sum.
ONE = EngineConfig(kv_cache_size_tokens=5120, num_gpu_blocks=160, block_size=32)
TWO = EngineConfig(kv_cache_size_tokens=5120, num_gpu_blocks=320, block_size=32)


@pytest.mark.parametrize(
    ("config", "engines", "known", "expected"),
    [
        pytest.param(ONE, 1, KnownConfig(), 5120, id="label-kv_cache_size_tokens"),
        pytest.param(TWO, 2, KnownConfig(), 5120, id="label-is-per-engine-under-data-parallelism"),
        pytest.param(ONE, 1, KnownConfig(kv_cache_tokens=9999), 5120, id="label-before-operator"),
        pytest.param(EngineConfig(num_gpu_blocks=160, block_size=32), 1, KnownConfig(), 5088, id="blocks-less-the-null-block"),
        pytest.param(EngineConfig(num_gpu_blocks=320, block_size=32), 2, KnownConfig(), 5088, id="blocks-are-the-sum-of-two-engines"),
        pytest.param(
            EngineConfig(num_gpu_blocks=160, block_size=32), 1, KnownConfig(kv_cache_tokens=43600), 43600, id="operator-before-blocks"
        ),
        pytest.param(
            EngineConfig(num_gpu_blocks=600, block_size=16, mixed_layers=True),
            1,
            KnownConfig(),
            None,
            id="blocks-of-several-kinds-of-layer",
        ),
        pytest.param(
            EngineConfig(kv_cache_size_tokens=5120, num_gpu_blocks=600, block_size=16, mixed_layers=True),
            1,
            KnownConfig(),
            5120,
            id="tokens-of-several-kinds-of-layer",
        ),
        pytest.param(EngineConfig(block_size=32), 1, KnownConfig(), None, id="blocks-unknown-0.8"),
        pytest.param(EngineConfig(num_gpu_blocks=160), 1, KnownConfig(), None, id="block-size-unknown"),
        pytest.param(EngineConfig(num_gpu_blocks=1, block_size=32), 1, KnownConfig(), None, id="only-the-null-block"),
        pytest.param(EngineConfig(num_gpu_blocks=0, block_size=32), 1, KnownConfig(), None, id="attention-free"),
        pytest.param(EngineConfig(), 1, KnownConfig(), None, id="nothing-known"),
    ],
)
def test_pool_comes_from_the_best_source_there_is(config, engines, known, expected):
    assert pool_tokens(config, engines, known) == expected


def test_a_pool_of_no_engine_is_refused():
    with pytest.raises(ValueError, match="at least one engine"):
        pool_tokens(ONE, 0, KnownConfig())


def test_24_gib_hold_twelve_full_sequences_of_2_gib_and_nine_with_headroom():
    assert sequences(24 * GIB, 2 * GIB) == 12
    assert safe_sequences(24 * GIB, 2 * GIB) == 9


@pytest.mark.parametrize(
    ("pool", "each", "fits", "safe"),
    [
        pytest.param(24576, 1720, 14, 11, id="design-example"),
        pytest.param(35, 1, 35, 28, id="no-float-dust"),
        pytest.param(5120, 5121, 0, 0, id="not-even-one"),
        pytest.param(5120, 512, 10, 8, id="storm"),
    ],
)
def test_whole_sequences_only(pool, each, fits, safe):
    assert (sequences(pool, each), safe_sequences(pool, each)) == (fits, safe)


@pytest.mark.parametrize(("pool", "each", "headroom"), [(100, 0, 0.2), (100, -1, 0.2), (-1, 10, 0.2), (100, 10, 1.0), (100, 10, -0.1)])
def test_impossible_sequences_are_refused(pool, each, headroom):
    with pytest.raises(ValueError, match=r"."):
        sequences(pool, each, headroom)


def test_memory_arithmetic_is_the_playbooks():
    # 24 GiB x 0.9 - 14 - 2 - 1 = 4.6 GiB
    assert memory_for_kv(gpu_memory=24 * GIB, utilization=0.9, weights=14 * GIB, activations=2 * GIB, other=GIB) == int(
        24 * GIB * 0.9 - 17 * GIB
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"weights": 26 * GIB}, r"weights \(26.00 GiB\) do not fit: 24.00 GiB x 0.92 leaves vLLM 22.08 GiB", id="weights"),
        pytest.param({"weights": 20 * GIB}, "nothing is left for KV", id="nothing-left"),
        pytest.param({"utilization": 0.0}, "utilization", id="no-utilization"),
        pytest.param({"utilization": 1.2}, "utilization", id="too-much-utilization"),
        pytest.param({"gpu_memory": 0}, "more than 0", id="no-memory"),
        pytest.param({"activations": -1}, "negative", id="negative"),
    ],
)
def test_impossible_memory_is_refused_with_the_reason(change, reason):
    given = {"gpu_memory": 24 * GIB, "utilization": 0.92, "weights": 14 * GIB, "activations": 2 * GIB, "other": GIB}
    with pytest.raises(ValueError, match=reason):
        memory_for_kv(**given | change)


def test_demand_counts_those_who_wait():
    assert demand(requests=32, tokens_per_sequence=512, pool=5120) == pytest.approx(3.2)
    with pytest.raises(ValueError, match="no tokens"):
        demand(1, 512, 0)


@pytest.mark.parametrize(("free", "rate", "expected"), [(1000, 50, 20.0), (0, 50, 0.0), (-5, 50, 0.0), (1000, 0, None), (1000, -3, None)])
def test_seconds_to_full(free, rate, expected):
    assert seconds_to_full(free, rate) == expected


@pytest.mark.parametrize(("tokens", "block", "expected"), [(500, 32, 512), (512, 32, 512), (500.5, None, 501), (1, 16, 16)])
def test_a_sequence_occupies_whole_blocks(tokens, block, expected):
    assert round_up_to_block(tokens, block) == expected
