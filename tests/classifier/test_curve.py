"""What an engine achieved at each batch size, and what is compared with it; tokens are those of one second."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import snapshot, steady, window

from kvwatch.classifier.saturation import ThroughputCurve, Work, work_of
from kvwatch.model import Saturation


def learnt(*steps, curve=None, at=0.0):
    """A curve that saw a second of each (running, generated, prompt tokens[, KV usage])."""
    curve = curve or ThroughputCurve()
    for running, generated, prompt, *usage in steps:
        before = snapshot(at, running=running, kv_usage=usage[0] if usage else 0.0)
        curve.note(before, replace(before, at=at + 1.0, generation_tokens=generated, prompt_tokens=prompt))
    return curve


def smaller(curve, running, rate, share=0.0, context=None):
    """(running, tokens per second) of the batch that yielded as much, if there was one."""
    found = curve.saturation(Work(running, rate * (1 - share), share), context)
    return None if found is None else (pytest.approx(found.running_then), pytest.approx(found.tokens_per_second_then))


def test_what_it_achieved_is_a_mean_that_follows_the_present():
    # A fifth of the way at each second: 1000, then 1200 and 1360; 16, then 16.2 and 16.36 running.
    assert smaller(learnt((16.0, 1000.0, 0.0), (17.0, 2000.0, 0.0), (17.0, 2000.0, 0.0)), 64.0, 1000.0) == (16.36, 1360.0)


def test_one_odd_poll_is_no_limit_of_the_processor():
    """Twice the tokens between two scrapes, as when the first came late: four times the batch still yields more than the mean did."""
    levels = learnt(*[(16.0, 1000.0, 0.0)] * 5, (16.0, 2000.0, 0.0))
    assert smaller(levels, 64.0, 1600.0) is None


def test_an_engine_that_has_become_faster_is_known_to_be_after_five_polls():
    """Half a minute at the default interval: then four times the batch yields hardly more than the small one does by now."""
    levels = learnt(*[(16.0, 1000.0, 0.0)] * 10, *[(16.0, 2000.0, 0.0)] * 5)
    assert smaller(levels, 64.0, 1700.0) is not None


def test_batches_of_about_one_size_are_one_level_and_others_are_not():
    assert smaller(learnt((16.0, 1000.0, 0.0), (18.5, 1000.0, 0.0), (16.0, 1000.0, 0.0)), 64.0, 1000.0) is not None
    assert smaller(learnt((16.0, 1000.0, 0.0), (20.0, 1000.0, 0.0), (16.0, 1000.0, 0.0)), 64.0, 1000.0) is None


def test_the_smallest_batch_that_yielded_as_much_is_named():
    curve = learnt(*[(32.0, 1000.0, 0.0)] * 3, *[(16.0, 1000.0, 0.0)] * 3)
    assert smaller(curve, 64.0, 1000.0) == (16.0, 1000.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({"running": 0.0}, {"running": 16.0}, id="nobody ran before"),
        pytest.param({"running": 16.0}, {"running": 0.0}, id="nobody runs after"),
        pytest.param({"running": 16.0}, {"running": 16.0, "at": 0.0}, id="no time between"),
        pytest.param({"running": 16.0}, {"running": 16.0, "generation_tokens": 0.0}, id="nothing came out"),
    ],
)
def test_what_says_nothing_of_the_processor_is_not_learnt(before, after):
    curve = ThroughputCurve()
    for _ in range(4):
        curve.note(snapshot(0.0, **before), snapshot(**({"at": 1.0, "generation_tokens": 1000.0} | after)))
    assert smaller(curve, 64.0, 1000.0) is None


def test_prompts_less_what_the_prefix_cache_gave_are_work():
    curve, before = ThroughputCurve(), snapshot(0.0, running=16.0, computed_prompt_tokens=0.0)
    for _ in range(3):
        curve.note(before, replace(before, at=1.0, generation_tokens=500.0, prompt_tokens=9000.0, computed_prompt_tokens=500.0))
    assert smaller(curve, 64.0, 1000.0, share=0.5) == (16.0, 1000.0)


def test_prompts_of_now_count_as_those_of_then_do():
    """Half of the tokens are prompts: 600 come out now and 500 came out then, a fifth more in all."""
    curve = learnt(*[(16.0, 500.0, 500.0)] * 3)
    assert curve.saturation(Work(64.0, 500.0, 0.5), None) == Saturation(16.0, 1000.0, 64.0, 1000.0)
    assert curve.saturation(Work(64.0, 600.0, 0.5), None) is None


def test_prompts_alone_are_work_too():
    assert smaller(learnt(*[(16.0, 10.0, 990.0)] * 3), 64.0, 1000.0, share=0.99) == (16.0, 1000.0)


@pytest.mark.parametrize(
    ("usage", "context", "alike"),
    [
        pytest.param(0.16, 0.015, True, id="half as much again"),
        pytest.param(0.16, 0.0151, False, id="more than that"),
        pytest.param(0.16, 0.0067, True, id="two thirds"),
        pytest.param(0.16, None, True, id="not known now"),
        pytest.param(None, 0.5, True, id="not known then"),
    ],
)
def test_contexts_are_alike_by_the_share_of_the_pool_a_sequence_holds(usage, context, alike):
    curve = learnt(*[(16.0, 1000.0, 0.0, usage)] * 3)
    assert (smaller(curve, 64.0, 1000.0, context=context) is not None) is alike


@pytest.mark.parametrize(("hours", "remembered"), [(1.0, True), (1.0001, False)])
def test_what_was_seen_an_hour_before_the_newest_is_forgotten(hours, remembered):
    curve = learnt((64.0, 1000.0, 0.0), curve=learnt(*[(16.0, 1000.0, 0.0)] * 3), at=hours * 3600.0)
    assert (smaller(curve, 64.0, 1000.0) is not None) is remembered


def test_a_level_that_was_not_seen_for_an_hour_begins_anew():
    curve = learnt(*[(16.0, 500.0, 0.0)] * 2, curve=learnt(*[(16.0, 1000.0, 0.0)] * 3), at=3600.5)
    assert smaller(curve, 64.0, 500.0) is None
    assert smaller(learnt((16.0, 500.0, 0.0), curve=curve, at=3605.0), 64.0, 500.0) == (16.0, 500.0)


@pytest.mark.parametrize(
    ("share", "crawls"),
    [
        pytest.param(0.0, True, id="fewer prompts than then"),
        pytest.param(0.69, True, id="about as many"),
        pytest.param(0.71, False, id="more: they take the time"),
    ],
)
def test_a_batch_beside_more_prompts_than_then_does_not_crawl(share, crawls):
    """Half of what was computed then were prompts."""
    curve = learnt(*[(8.0, 500.0, 500.0)] * 3)
    assert (curve.slowdown(Work(8.0, 100.0, share), None) is not None) is crawls


@pytest.mark.parametrize(("then", "crawls"), [(8.8, True), (8.9, False)])
def test_a_batch_a_tenth_smaller_than_then_crawls_too(then, crawls):
    curve = learnt(*[(then, 800.0, 0.0)] * 3)
    assert (curve.slowdown(Work(8.0, 100.0, 0.0), None) is not None) is crawls


@pytest.mark.parametrize(
    ("fields", "work"),
    [
        pytest.param({}, Work(4.0, 10.0, 0.75), id="300 generated and 900 of prompts in 30 s"),
        pytest.param({"running": None}, None, id="no batch known"),
        pytest.param({"generation_tokens": 0.0}, None, id="nothing came out"),
        pytest.param({"generation_tokens": None}, None, id="not reported"),
        pytest.param({"prompt_tokens": None}, None, id="prompts are not reported"),
        pytest.param({"prompt_tokens": 0.0, "generation_tokens": 0.0}, None, id="no work at all"),
    ],
)
def test_the_work_of_a_window(fields, work):
    seen = {"running": replace(steady(9.0), low=4.0), "generation_tokens": 300.0, "prompt_tokens": 900.0} | fields
    assert work_of(window(30.0, **seen)) == work
