"""How large requests are, from two snapshots or a window; pools in tokens, shares of the pool from 0 to 1."""

from __future__ import annotations

from typing import Any

import pytest
from builders import histogram, snapshot, steady, window

from kvwatch.classifier.sizes import held_beyond, mean_of, mean_running, own_tokens, prefix_hit_ratio_of, prompt_length, sequence_share_of
from kvwatch.model import GaugeStats


@pytest.mark.parametrize(
    ("queries", "hits", "ratio"),
    [
        pytest.param((100.0, 300.0), (0.0, 50.0), 0.25, id="a quarter of two hundred"),
        pytest.param((100.0, 300.0), (0.0, 250.0), 1.0, id="never more than all"),
        pytest.param((100.0, 100.0), (0.0, 0.0), None, id="nothing was looked up"),
        pytest.param((100.0, 100.0), (0.0, 5.0), None, id="a hit that was looked up before"),
        pytest.param((None, 300.0), (0.0, 50.0), None, id="not reported before"),
        pytest.param((100.0, 300.0), (None, None), None, id="hits are not reported"),
    ],
)
def test_share_of_prompt_tokens_found_in_the_prefix_cache(queries, hits, ratio):
    first, last = (snapshot(float(i), prefix_queries=queries[i], prefix_hits=hits[i]) for i in (0, 1))
    assert prefix_hit_ratio_of(first, last) == ratio


@pytest.mark.parametrize(
    ("samples", "nobodys", "share"),
    [
        pytest.param([(4.0, 0.4), (4.0, 0.6)], 0.0, 0.125, id="the mean"),
        pytest.param([(4.0, 0.4), (4.0, 0.6)], 0.2, 0.075, id="less what is nobody's"),
        pytest.param([(4.0, 0.1)], 0.2, 0.0, id="never less than nothing"),
        pytest.param([(4.0, 0.4), (3.0, 0.6)], 0.0, 0.15, id="three of four are a large batch"),
        pytest.param([(4.0, 0.4), (2.0, 0.6)], 0.0, 0.1, id="two are not"),
        pytest.param([(0.0, 0.4), (None, 0.4)], 0.0, None, id="nobody runs"),
        pytest.param([(4.0, None)], 0.0, None, id="usage is not known"),
    ],
)
def test_share_that_one_running_sequence_holds(samples, nobodys, share):
    found = sequence_share_of([snapshot(float(i), running=r, kv_usage=u) for i, (r, u) in enumerate(samples)], nobodys)
    assert found == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("batches", "mean"),
    [
        pytest.param([8.0, 6.0, 5.0], 7.0, id="three quarters of the largest are large"),
        pytest.param([8.0, None, 0.0], 8.0, id="only those that are known, and run"),
        pytest.param([0.0, None], None, id="nobody runs"),
    ],
)
def test_how_many_run_in_the_largest_batches(batches, mean):
    assert mean_running([snapshot(float(i), running=running, kv_usage=0.5) for i, running in enumerate(batches)]) == mean


@pytest.mark.parametrize(
    ("held", "prompt", "output", "own"),
    [
        pytest.param(5000.0, 1000.0, 400.0, 5000.0, id="what it holds"),
        pytest.param(5000.0, 1000.0, 1.0, 1001.0, id="a prefill server: finished ones wait to be fetched"),
        pytest.param(500.0, 1000.0, 1.0, 500.0, id="in the middle of its prompt"),
        pytest.param(5000.0, None, 1.0, 5000.0, id="no prompt known"),
        pytest.param(5000.0, 1000.0, None, 5000.0, id="no output known"),
        pytest.param(None, 1000.0, 1.0, None, id="nothing known"),
    ],
)
def test_tokens_of_a_running_sequence(held, prompt, output, own):
    assert own_tokens(held, prompt, output) == own


@pytest.mark.parametrize(
    ("fields", "beyond"),
    [
        pytest.param({}, 0.272, id="three of 2 400 explain 7.2 %, and a third is held"),
        pytest.param({"kv_usage": steady(0.217)}, 0.145, id="three times as much"),
        pytest.param({"kv_usage": steady(0.215)}, None, id="long ones stay longest"),
        pytest.param({"running": steady(1.0), "kv_usage": steady(0.125)}, 0.101, id="a tenth of the pool"),
        pytest.param({"running": steady(1.0), "kv_usage": steady(0.123)}, None, id="less than a tenth"),
        pytest.param(
            {"running": steady(1.0), "prompt": 12_100.0, "kv_usage": GaugeStats(mean=0.375, low=0.225, peak=0.5, last=0.375)},
            0.1,
            id="12 500 explain an eighth: three times as much on average, a tenth more at the least",
        ),
        pytest.param({"finished": 9.0}, 0.272, id="three finished for each that runs"),
        pytest.param({"finished": 8.0}, None, id="those that run may be others than those that finished"),
        pytest.param({"finished": None}, None, id="how many finished is not known"),
        pytest.param({"running": steady(0.0)}, None, id="nobody runs"),
        pytest.param({"running": None}, None, id="not known whether anybody runs"),
        pytest.param({"kv_usage": None}, None, id="usage is not known"),
        pytest.param({"output": 1.0}, None, id="a prefill server holds finished ones"),
        pytest.param({"output": None}, None, id="no output known"),
        pytest.param({"prompt": None}, None, id="no prompt known"),
        pytest.param({"pool": None}, None, id="no pool known"),
    ],
)
def test_what_is_held_beyond_what_requests_explain(fields, beyond):
    sizes: dict[str, Any] = {"pool": 100_000.0, "prompt": 2000.0, "output": 400.0}
    seen: dict[str, Any] = {"running": steady(3.0), "kv_usage": steady(0.344), "finished": 60.0}
    sizes |= {name: value for name, value in fields.items() if name in sizes}
    seen |= {name: value for name, value in fields.items() if name in seen}
    found = held_beyond(window(120.0, **seen), **sizes)
    assert found == (None if beyond is None else pytest.approx(beyond))


@pytest.mark.parametrize(
    ("first", "last", "mean"),
    [
        pytest.param((100.0, 1.0), (700.0, 3.0), 300.0, id="of what came in the window"),
        pytest.param((100.0, 1.0), (100.0, 1.0), 100.0, id="of the whole life where nothing came"),
        pytest.param((None, None), (600.0, 3.0), 200.0, id="of the whole life where it began in between"),
        pytest.param((0.0, 0.0), (0.0, 0.0), None, id="of nothing"),
        pytest.param((0.0, 0.0), (None, None), None, id="not reported"),
        pytest.param((None, None), (600.0, None), None, id="not how many there were"),
        pytest.param((100.0, 1.0), (100.0, 3.0), 0.0, id="two of no length"),
    ],
)
def test_mean_of_a_histogram(first, last, mean):
    before, after = (snapshot(float(i), prompt_length_sum=s, prompt_length_count=c) for i, (s, c) in enumerate((first, last)))
    assert mean_of(before, after, "prompt_length_sum", "prompt_length_count") == mean


@pytest.mark.parametrize(
    ("admitted", "length"),
    [
        pytest.param((5, 7), 1500.0, id="three thousand tokens of two that were admitted"),
        pytest.param((5, 5), 50.0, id="none was admitted: those that finished"),
        pytest.param((7, 5), 50.0, id="a count that went back"),
        pytest.param((None, 7), 50.0, id="not reported before"),
    ],
)
def test_length_of_the_prompts_admitted_lately(admitted, length):
    ends = [
        snapshot(
            float(i),
            prompt_tokens=500.0 + 3000.0 * i,
            time_to_first_token=None if count is None else histogram(0, 0, count),
            prompt_length_sum=100.0 * i,
            prompt_length_count=2.0 * i,
        )
        for i, count in enumerate(admitted)
    ]
    assert prompt_length(ends) == length
