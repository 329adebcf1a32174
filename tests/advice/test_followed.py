"""When a limit on running sequences counts as set the way it was advised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwatch.advice.followed import Followed, Following, Observed
from kvwatch.advice.neighbours import Neighbours, Peers
from kvwatch.config.policy import KnownConfig
from kvwatch.model import Change, EngineConfig, GaugeStats, Signals, Window

BOOT, LATER = 1000.0, 5000.0


def signals(running, queued=60.0, share=None):
    window = Window(seconds=30, samples=7, running=GaugeStats(mean=running, low=0, peak=running, last=running))
    return Signals(at=0.0, recent=window, fast=window, slow=window, queued_seconds=queued, preempted_share=share)


def limit(number):
    return (Change(lever="--max-num-seqs", current="64", proposed=str(number), reason="why", effect="effect", caution="caution"),)


def changed(before, after, then, now):
    return Followed("--max-num-seqs", str(before), str(after), Observed(then), Observed(now))


def following(before, advised, started=BOOT):
    one = Following()
    one.observe(signals(before, share=0.4), started)
    one.note(limit(advised), signals(before, share=0.4))
    return one


@pytest.mark.parametrize(
    ("before", "advised", "now", "followed"),
    [
        (64, 10, 10, True),
        (64, 10, 8, True),  # a hand rounds
        (64, 10, 12, True),
        (64, 10, 13, False),  # 30 % from what was advised
        (64, 10, 64, False),  # restarted as it was
        (8, 32, 32, True),  # a limit that was raised
        (8, 32, 40, True),
        (8, 32, 8, False),
        (3, 2, 2, True),
        (3, 2, 3, False),  # one is within a quarter rounded up, but nothing was lowered
        (2, 1, 1, True),
    ],
)
def test_a_limit_seen_after_a_restart_counts_when_it_is_near_the_one_advised(before, advised, now, followed):
    one = following(before, advised)
    one.observe(signals(now, share=0.0), LATER)
    assert one.followed == (changed(before, now, 0.4, 0.0) if followed else None)


def test_without_a_restart_fewer_running_is_only_less_load():
    one = following(64, 10)
    one.observe(signals(10), BOOT)
    assert one.followed is None


def test_without_a_start_time_a_restart_cannot_be_seen():
    one = following(64, 10, started=None)
    one.observe(signals(10), None)
    assert one.followed is None


def test_a_queue_of_half_a_minute_tells_a_limit_from_little_load():
    one = following(64, 10)
    one.observe(signals(10, queued=29.9), LATER)
    assert one.followed is None
    one.observe(signals(10, queued=30.0), LATER)
    assert one.followed is not None


def test_once_followed_it_stays_so_when_the_queue_drains():
    one = following(64, 10)
    one.observe(signals(10), LATER)
    one.observe(signals(4, queued=0.0), LATER)
    assert one.followed == changed(64, 10, 0.4, None)


def test_more_running_than_advised_takes_the_word_back():
    one = following(64, 10)
    one.observe(signals(10), LATER)
    one.observe(signals(40), LATER)
    assert one.followed is None


def test_a_second_restart_is_judged_by_the_advice_given_since_the_first():
    one = following(64, 10)
    one.observe(signals(12), LATER)
    one.note(limit(9), signals(12, share=0.2))
    one.observe(signals(9, share=0.0), 2 * LATER)
    assert one.followed == changed(12, 9, 0.2, 0.0)


def test_a_second_restart_without_new_advice_is_judged_by_the_old():
    one = following(64, 10)
    one.observe(signals(10), LATER)
    one.observe(signals(10), 2 * LATER)
    assert one.followed == changed(64, 10, 0.4, None)


def test_a_scrape_without_signals_changes_nothing():
    one = following(64, 10)
    one.observe(signals(10), LATER)
    one.observe(None, LATER)
    assert one.followed is not None


@pytest.mark.parametrize(
    "changes", [(), (Change(lever="replicas", current="1", proposed="2", reason="why", effect="effect", caution="caution"),), limit(64)]
)
def test_advice_without_another_limit_is_nothing_to_follow(changes):
    one = Following()
    one.observe(signals(64), BOOT)
    one.note(changes, signals(64))
    one.observe(signals(10), LATER)
    assert one.followed is None


@pytest.mark.parametrize(
    ("followed", "text", "lowered"),
    [
        (
            changed(64, 10, 0.34, 0.02),
            "followed: --max-num-seqs 64 → 10, preempted 34% → 2% of the requests leaving the batch",
            True,
        ),
        (
            Followed("--max-num-seqs", "4", "32", Observed(0.0, 28.4), Observed(0.0, 2.6)),
            "followed: --max-num-seqs 4 → 32, 28 → 3 waiting",
            False,
        ),
        (Followed("replicas", "1", "3", Observed(0.3, 9.0), Observed(None, 2.0)), "followed: replicas 1 → 3, 9 → 2 waiting", False),
        (changed(8, 32, None, 0.1), "followed: --max-num-seqs 8 → 32", False),
        (changed(64, 10, 0.34, None), "followed: --max-num-seqs 64 → 10", True),
    ],
)
def test_it_says_before_and_after_as_far_as_both_are_known(followed, text, lowered):
    assert (str(followed), followed.lowered) == (text, lowered)


def advised(lever, proposed):
    return (Change(lever=lever, proposed=proposed, reason="why", effect="effect", caution="caution"),)


BEFORE = EngineConfig(gpu_memory_utilization=0.9, cache_dtype="auto", enable_prefix_caching=False)


@pytest.mark.parametrize(
    ("lever", "proposed", "config", "known", "text"),
    [
        ("--gpu-memory-utilization", "0.92", {"gpu_memory_utilization": 0.92}, {}, "--gpu-memory-utilization 0.9 → 0.92"),
        ("--gpu-memory-utilization", "0.92", {"gpu_memory_utilization": 0.8}, {}, None),
        ("--kv-cache-dtype", "fp8", {"cache_dtype": "fp8_e4m3"}, {}, "--kv-cache-dtype auto → fp8_e4m3"),
        ("--kv-cache-dtype", "fp8", {"cache_dtype": "bfloat16"}, {}, None),
        ("--enable-prefix-caching", "on", {"enable_prefix_caching": True}, {}, "--enable-prefix-caching off → on"),
        ("--enable-prefix-caching", "on", {"gpu_memory_utilization": 0.92}, {}, None),
        ("--max-num-batched-tokens", "4096", {}, {"max_num_batched_tokens": 4096}, "--max-num-batched-tokens 2048 → 4096"),
        ("--watermark", "0.05", {}, {}, None),  # nobody can see it
    ],
)
def test_a_flag_that_can_be_seen_counts_when_it_has_the_value_advised(lever, proposed, config, known, text):
    one, seen = Following(), KnownConfig(max_num_batched_tokens=2048)
    one.observe(signals(64, share=0.4), BOOT, BEFORE, seen)
    one.note(advised(lever, proposed), signals(64, share=0.4))
    one.observe(signals(64, share=0.4), BOOT, BEFORE, seen)
    assert one.followed is None
    now = replace(BEFORE, **config), seen.model_copy(update=known)
    for _ in range(2):
        one.observe(signals(64, share=0.1), LATER, *now)
        one.note((), signals(64, share=0.1))
        said = None if text is None else f"followed: {text}, preempted 40% → 10% of the requests leaving the batch"
        assert (one.followed and str(one.followed)) == said
    one.observe(signals(64, share=0.1), 2 * LATER, BEFORE, seen)
    assert one.followed is None  # it was taken back


def replicas(count):
    return Neighbours(replicas=Peers((signals(3),) * (count - 1)))


@pytest.mark.parametrize(
    ("counts", "text"), [([1, 3], "replicas 1 → 3"), ([2, 1, 2], None), ([2, 1, 4, 3], "replicas 2 → 4"), ([2, 2], None)]
)
def test_replicas_count_when_there_are_more_than_there_ever_were(counts, text):
    one = Following()
    for count in counts:
        one.observe(signals(8), BOOT, neighbours=replicas(count))
        if one.followed is None:
            one.note(advised("replicas", None), signals(8))
    assert (one.followed and str(one.followed)) == (text and f"followed: {text}")


def test_a_lower_limit_is_told_before_a_flag_that_was_changed_too():
    one = following(64, 10)
    one.note(advised("--kv-cache-dtype", "fp8"), signals(64))
    one.observe(signals(10), LATER, EngineConfig(cache_dtype="fp8"))
    assert one.followed.lever == "--max-num-seqs"
