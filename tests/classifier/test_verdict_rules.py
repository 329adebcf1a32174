"""One table per rule: signals somebody worked out, and what the rule must say of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import queue, signals, steady

from kvwatch.classifier.rules import (
    PRECEDENCE,
    admission,
    compute,
    deferred,
    find,
    frontend,
    healthy,
    idle,
    preempting,
    sequence_slots,
    stalled,
    step_budget,
)
from kvwatch.classifier.rules.numbers import FULLEST, QUEUE, RUNNING
from kvwatch.config.policy import Policy, Thresholds
from kvwatch.model import CAUSES, Cause, GaugeStats, Saturation, State
from kvwatch.text import counted

POLICY = Policy()
POOL: dict[str, Any] = {"capacity_tokens": 10_000, "next_prompt_tokens": 1_000.0}
"""A pool of 10 000 tokens and prompts of 1 000: the next one fits below 88.5 % (a blocked one is longer than the mean)."""


FEW = {"preemptions": 3.0, "preemption_ratio": 0.04}
MANY = {"preemptions": 9.0, "preemption_ratio": 0.14}


def usage(peak, low=0.1):
    return {"kv_usage": GaugeStats(mean=(peak + low) / 2, low=low, peak=peak, last=low)}


TAKEN = usage(0.99) | queue(5.0) | {"running": steady(300.0)}
BELOW = {"running": GaugeStats(mean=297.0, low=296.0, peak=299.0, last=297.0)}
AT_300 = {"at_ceiling_share": 0.9, "running_ceiling": 300.0}


def cause_of(rule, found):
    finding = rule.judge(found, POLICY)
    return finding and finding.cause


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param({"seconds_without_life": 10.0, "running": 3.0}, Cause.STALLED, id="nothing has moved for long enough"),
        pytest.param({"seconds_without_life": 14.0, "stall_patience": 15.0}, None, id="its own steps last as long"),
        pytest.param({"seconds_without_life": 9.0, "seconds_without_progress": 9.0}, None, id="not for long enough"),
        pytest.param({"seconds_without_life": 0.0, "seconds_without_progress": 45.0}, None, id="a long prefill: it steps, no token yet"),
        pytest.param({"seconds_without_life": 0.0, "seconds_without_progress": 60.0}, Cause.STALLED, id="it steps for a minute in vain"),
        pytest.param({}, None, id="no work"),
        pytest.param(
            {"seconds_without_life": 30.0, "running": 9.0, "waiting": 7.0, "clients_left": True},
            Cause.STALE,
            id="all clients left: old gauges",
        ),
    ],
)
def test_stalled(found, expected):
    assert cause_of(stalled, signals(**found)) == expected


def test_no_work_is_no_stall_however_short_the_patience():
    assert stalled.judge(signals(), Policy(thresholds=Thresholds(stall=0.5, silence=0.5))) is None


def test_a_frozen_engine_with_a_full_cache_is_stalled_and_not_kv_bound():
    frozen = signals(every=queue(20.0) | usage(0.99) | {"preemptions": 9.0}, seconds_without_life=12.0, running=9.0, waiting=20.0, **POOL)
    assert find(frozen, POLICY).cause is Cause.STALLED


@pytest.mark.parametrize(
    ("windows", "fields", "expected"),
    [
        pytest.param({"preemptions": 12.0, "preemption_ratio": 0.3} | usage(0.99), {}, Cause.PREEMPTING, id="a storm"),
        pytest.param({"preemptions": 1.0, "preemption_ratio": 0.25} | usage(0.99), {}, Cause.PREEMPTING, id="one of four long sequences"),
        pytest.param({"preemptions": 0.0, "preemption_ratio": 0.0} | usage(0.99), {}, None, id="none"),
        pytest.param({"preemptions": 3.0, "preemption_ratio": 0.005} | usage(0.99), {}, None, id="three among six hundred"),
        pytest.param(
            {"preemptions": 9.0, "preemption_ratio": None} | usage(0.99), {}, Cause.PREEMPTING, id="finished requests not reported"
        ),
        pytest.param({"preemptions": 90.0, "preemption_ratio": 0.9} | usage(0.3), {}, None, id="cache reset or priorities: plenty of room"),
        pytest.param(
            {"preemptions": 5.0, "preemption_ratio": 0.3} | usage(0.65),
            {"sequence_share": 0.3},
            Cause.PREEMPTING,
            id="long sequences: a third each",
        ),
        pytest.param({"preemptions": 9.0, "preemption_ratio": 0.3, "kv_usage": None}, {}, Cause.PREEMPTING, id="usage not reported"),
        pytest.param({"preemptions": None} | usage(0.99), {}, None, id="preemptions not reported"),
        pytest.param(FEW | usage(0.99), {}, None, id="a wave a little too large, and no queue"),
        pytest.param(FEW | usage(0.99) | queue(5.0), {}, Cause.PREEMPTING, id="the same with a queue"),
        pytest.param(TAKEN | FEW, AT_300, None, id="the slots are taken"),
        pytest.param(TAKEN | MANY, AT_300, Cause.PREEMPTING, id="the slots are taken, and a storm"),
        pytest.param(TAKEN | FEW | BELOW, AT_300, Cause.PREEMPTING, id="near the most ever seen, and never there again: no slots"),
        pytest.param(TAKEN | FEW | BELOW, AT_300 | {"ceiling_known": True}, None, id="as near to a limit that somebody named"),
        pytest.param(TAKEN | FEW | {"running": None}, AT_300, Cause.PREEMPTING, id="the batch is not reported"),
    ],
)
def test_preempting(windows, fields, expected):
    assert cause_of(preempting, signals(every=windows, **fields)) == expected


def test_preemptions_of_two_minutes_ago_are_over_when_none_came_in_the_last_half_minute():
    over = signals(every=usage(0.99) | MANY, fast={"preemptions": 0.0, "preemption_ratio": 0.0})
    assert cause_of(preempting, over) is None


@pytest.mark.parametrize(("count", "expected"), [(1.0, None), (2.0, Cause.PREEMPTING)])
def test_of_some_while_ago_more_than_one_still_explains_a_queue_before_a_full_cache(count, expected):
    every = queue(5.0) | usage(0.99) | {"preemptions": count, "preemption_ratio": 0.25}
    assert cause_of(preempting, signals(every=every, fast={"preemptions": 0.0})) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(None, Cause.PREEMPTING), (3.0, Cause.PREEMPTING), (4.0, None)])
def test_a_cool_cache_without_a_queue_ends_even_a_storm(seconds, expected):
    storm = signals(every=usage(0.99) | {"preemptions": 50.0, "preemption_ratio": 0.4}, cool_seconds=seconds)
    assert cause_of(preempting, storm) == expected


@pytest.mark.parametrize(
    ("windows", "again", "expected"),
    [
        pytest.param(usage(0.95), 1.0, Cause.PREEMPTING, id="one of them gets no token, and no prompt ends"),
        pytest.param(usage(0.95), 0.4, None, id="less than one half of the time"),
        pytest.param(usage(0.85), 1.0, None, id="there is room"),
        pytest.param(usage(0.95), None, None, id="prompts end, or nothing is known"),
    ],
)
def test_victims_that_no_counter_shows(windows, again, expected):
    assert cause_of(preempting, signals(every=windows | {"preemptions": 0.0}, sequences_recomputing=again)) == expected


@pytest.mark.parametrize(
    ("windows", "fields", "expected"),
    [
        pytest.param(queue(9.0) | usage(0.93), POOL, Cause.ADMISSION, id="700 tokens free, 1 000 needed"),
        pytest.param(
            queue(9.0) | usage(0.93),
            POOL | {"sequences_prefilling": 0.95},
            None,
            id="no room, but the processor is never done with the last prompt",
        ),
        pytest.param(
            queue(9.0) | usage(0.93), POOL | {"sequences_prefilling": 6.0}, Cause.ADMISSION, id="several API servers count each step"
        ),
        pytest.param(queue(9.0) | usage(0.60), POOL, None, id="4 000 free: something else holds them"),
        pytest.param(queue(0.0) | usage(0.99), POOL, None, id="full, and nobody waits: what you paid for"),
        pytest.param(queue(9.0) | usage(0.62), POOL | {"next_prompt_tokens": 3500.0}, Cause.ADMISSION, id="long prompts block at 62 %"),
        pytest.param(
            queue(9.0) | usage(0.62),
            POOL | {"next_prompt_tokens": 1500.0, "sequence_share": 0.3, "sequences_held": 3.0},
            Cause.ADMISSION,
            id="gauges show 62 %, but three sequences of 30 % ran",
        ),
        pytest.param(
            queue(9.0) | usage(0.70),
            {"next_prompt_tokens": 900.0, "output_tokens": 200.0, "sequence_share": 0.3, "at_ceiling_share": 0.9},
            Cause.ADMISSION,
            id="pool unknown: 30 % free, a prompt takes 31 %",
        ),
        pytest.param(
            queue(9.0) | usage(0.70),
            {"next_prompt_tokens": 100.0, "output_tokens": 1800.0, "sequence_share": 0.3, "at_ceiling_share": 0.9},
            None,
            id="pool unknown: 30 % free, a prompt takes 3 %",
        ),
        pytest.param(queue(9.0) | usage(0.93), {"at_ceiling_share": 0.0}, Cause.ADMISSION, id="sizes unknown, hot and swinging"),
        pytest.param(queue(9.0) | usage(0.93), {"at_ceiling_share": 0.9}, None, id="sizes unknown, hot and standing still: another limit"),
        pytest.param(
            queue(9.0) | usage(0.93), POOL | {"next_prompt_tokens": 30.0, "at_ceiling_share": 0.8}, None, id="hot, room, 256 slots taken"
        ),
        pytest.param(queue(9.0) | {"kv_usage": None}, POOL, None, id="usage not reported"),
        pytest.param(queue(9.0) | {"queued_share": 0.5} | usage(0.99), POOL, None, id="a queue that comes and goes"),
    ],
)
def test_admission(windows, fields, expected):
    assert cause_of(admission, signals(every=windows, **fields)) == expected


@pytest.mark.parametrize(
    ("waiting", "deferred_count", "expected"),
    [
        pytest.param(6.0, 6.0, Cause.DEFERRED, id="all of them"),
        pytest.param(6.0, 3.0, Cause.DEFERRED, id="half of them"),
        pytest.param(6.0, 2.0, None, id="the smaller part"),
        pytest.param(0.5, 0.5, None, id="less than one"),
        pytest.param(6.0, None, None, id="before vLLM 0.20"),
    ],
)
def test_deferred(waiting, deferred_count, expected):
    windows = {"waiting": steady(waiting), "deferred": deferred_count if deferred_count is None else steady(deferred_count)}
    assert cause_of(deferred, signals(every=windows)) == expected


@pytest.mark.parametrize(
    ("length", "share", "expected"),
    [
        pytest.param(9.0, 0.9, Cause.SEQUENCE_SLOTS, id="running stands at its ceiling"),
        pytest.param(9.0, 0.2, None, id="it swings"),
        pytest.param(0.0, 0.9, None, id="nobody waits"),
        pytest.param(9.0, None, None, id="not known"),
    ],
)
def test_sequence_slots(length, share, expected):
    assert cause_of(sequence_slots, signals(every=queue(length) | usage(0.2), running_ceiling=8.0, at_ceiling_share=share)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"prefill_token_share": 0.98, "at_ceiling_share": 0.1}, Cause.STEP_BUDGET, id="mostly prefill, running below its ceiling"
        ),
        pytest.param(
            {"prefill_token_share": 0.98, "at_ceiling_share": 0.8, "sequences_prefilling": 0.9},
            Cause.STEP_BUDGET,
            id="a prompt in every step",
        ),
        pytest.param(
            {"prefill_token_share": 0.98, "at_ceiling_share": 0.8, "sequences_prefilling": 0.1}, None, id="slots taken, steps not full"
        ),
        pytest.param({"prefill_token_share": 0.30, "at_ceiling_share": 0.1}, None, id="mostly decoding"),
        pytest.param({}, None, id="nothing known"),
        pytest.param(
            {"prefill_token_share": 0.98, "at_ceiling_share": 0.8, "step_token_budget": 256},
            Cause.STEP_BUDGET,
            id="the budget is known, and used",
        ),
        pytest.param(
            {"prefill_token_share": 0.98, "at_ceiling_share": 0.8, "step_token_budget": 2048, "sequences_prefilling": 0.9},
            None,
            id="the budget is known, and not used",
        ),
    ],
)
def test_step_budget(fields, expected):
    assert cause_of(step_budget, signals(every=queue(20.0) | usage(0.14), tokens_per_step=250.0, **fields)) == expected


def test_short_prompts_fill_the_step_though_the_batch_hardly_varies():
    batch: dict[str, Any] = {"running_ceiling": 17.0, "at_ceiling_share": 0.2, "sequences_decoding": 16.0, "tokens_per_step": 500.0}
    found = signals(every=queue(130.0) | usage(0.08), prefill_token_share=0.97, **batch)
    assert find(found, POLICY).cause is Cause.STEP_BUDGET


LONG: dict[str, Any] = {"sequences_prefilling": 1.0, "seconds_to_full": 500.0, "running_ceiling": 3.0, "at_ceiling_share": 1.0}
"""One prompt under way, beside two sequences that get tokens, in a cache that fills."""


@pytest.mark.parametrize(
    ("fast", "fields", "expected"),
    [
        pytest.param({"prompt_tokens": 0.0}, {}, Cause.STEP_BUDGET, id="it has not come to its end"),
        pytest.param({"prompt_tokens": 0.0}, {"sequences_prefilling": 0.5}, Cause.STEP_BUDGET, id="half of the time"),
        pytest.param({"prompt_tokens": 0.0}, {"sequences_prefilling": 0.4}, None, id="less than half of the time"),
        pytest.param({"prompt_tokens": 0.0}, {"sequences_prefilling": None}, None, id="who gets tokens is not known"),
        pytest.param({"prompt_tokens": 0.0}, {"seconds_to_full": None}, None, id="the cache does not fill"),
        pytest.param({"prompt_tokens": 0.0}, {"ceiling_known": True}, None, id="all slots are taken, and it is known"),
        pytest.param({"prompt_tokens": 0.0}, {"ceiling_known": True, "at_ceiling_share": 0.1}, Cause.STEP_BUDGET, id="slots are free"),
        pytest.param({"prompt_tokens": None}, {}, None, id="prompts are not counted"),
        pytest.param({"prompt_tokens": 40_000.0}, {}, None, id="prompts end"),
    ],
)
def test_a_prompt_longer_than_the_window_fills_the_steps(fast, fields, expected):
    found = signals(every=queue(3.0) | usage(0.3), fast=fast, **(LONG | fields))
    assert cause_of(step_budget, found) == expected


def test_a_long_prompt_is_told_of_with_how_many_are_under_way():
    found = step_budget.RULE.judge(signals(every=queue(3.0) | usage(0.3), fast={"prompt_tokens": 0.0}, **LONG), POLICY)
    said = "1 of the running sequences in their prefill, none of which has come to its end in 30 s, while the KV cache fills"
    assert found is not None
    assert found.evidence == ("3 requests waiting", said)


def test_steps_of_a_few_tokens_are_not_full():
    small = signals(every=queue(20.0) | usage(0.14), tokens_per_step=20.0, prefill_token_share=0.64, at_ceiling_share=0.1)
    assert cause_of(step_budget, small) is None


SATURATED = Saturation(running_then=40.0, tokens_per_second_then=5000.0, running_now=120.0, tokens_per_second_now=5100.0)


@pytest.mark.parametrize(
    ("windows", "saturation", "expected"),
    [
        pytest.param(queue(0.0), SATURATED, Cause.COMPUTE, id="three times the batch, no more tokens, and no queue"),
        pytest.param(queue(9.0) | usage(0.2), None, Cause.COMPUTE, id="a queue that nothing else explains"),
        pytest.param(queue(9.0) | {"kv_usage": None}, None, None, id="a queue, and the cache is not known"),
        pytest.param(queue(0.0), None, None, id="nothing"),
    ],
)
def test_compute(windows, saturation, expected):
    assert cause_of(compute, signals(every=windows, saturation=saturation)) == expected


@pytest.mark.parametrize(
    ("windows", "fields", "expected"),
    [
        pytest.param({"running": steady(4.0)}, {"process_cpu_ratio": 0.97}, Cause.FRONTEND, id="the API server uses a whole core"),
        pytest.param({"running": steady(4.0)}, {"process_cpu_ratio": 0.5}, None, id="half a core"),
        pytest.param({"running": steady(0.0)}, {"process_cpu_ratio": 0.99}, None, id="a busy process without work for the engine"),
        pytest.param(
            {"running": steady(4.0)} | queue(5.0), {"gpu_utilization": 0.55}, Cause.FRONTEND, id="the GPU idles while requests wait"
        ),
        pytest.param({"running": steady(4.0)} | queue(5.0), {"gpu_utilization": 0.95}, None, id="the GPU is busy"),
        pytest.param({"running": steady(4.0)} | queue(0.0), {"gpu_utilization": 0.10}, None, id="an idle GPU and nobody waits"),
    ],
)
def test_frontend(windows, fields, expected):
    assert cause_of(frontend, signals(every=windows, **fields)) == expected


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        pytest.param({"running": steady(3.0)} | usage(0.4), Cause.OK, id="running, nothing waits"),
        pytest.param({"running": steady(3.0), "kv_usage": steady(0.95)}, Cause.KV_HIGH, id="two minutes above the watermark"),
        pytest.param({"running": steady(3.0), "kv_usage": steady(0.90)}, Cause.OK, id="at the watermark is not above it"),
        pytest.param({"running": steady(3.0), "kv_usage": None}, Cause.OK, id="usage not reported"),
        pytest.param({"running": None}, None, id="running not reported"),
        pytest.param({"waiting": None}, None, id="waiting not reported"),
    ],
)
def test_healthy(windows, expected):
    assert cause_of(healthy, signals(every=windows)) == expected


def test_idle_goes_before_what_the_windows_remember():
    left = signals(every={"preemptions": 12.0, "preemption_ratio": 0.4} | usage(0.99), idle=True)
    assert (idle.judge(left, POLICY).cause, find(left, POLICY).cause) == (Cause.IDLE, Cause.IDLE)


def test_where_requests_come_in_waves_the_sequences_per_step_tell_that_the_slots_are_taken():
    batch: dict[str, Any] = {"running_ceiling": 8.0, "at_ceiling_share": 0.2, "sequences_decoding": 7.9, "tokens_per_step": 20.0}
    waves = signals(every=queue(15.0) | usage(0.7), prefill_token_share=0.6, **batch)
    assert find(waves, POLICY).cause is Cause.SEQUENCE_SLOTS


def test_a_limit_on_sequences_with_room_in_the_cache_is_slots_even_when_the_cache_is_at_93_percent():
    pinned = signals(
        every=queue(200.0) | usage(0.93, low=0.9),
        running_ceiling=256.0,
        at_ceiling_share=1.0,
        capacity_tokens=128_000,
        next_prompt_tokens=320.0,
    )
    assert find(pinned, POLICY).cause is Cause.SEQUENCE_SLOTS


def test_what_no_rule_explains_is_ambiguous_and_says_so():
    finding = find(signals(every={"running": None, "waiting": None, "kv_usage": None}), POLICY)
    assert (finding.state, finding.cause, len(finding.evidence)) == (State.UNKNOWN, Cause.AMBIGUOUS, 1)


def test_every_rule_has_its_place_in_the_order():
    modules = {stalled, idle, preempting, deferred, admission, step_budget, sequence_slots, frontend, compute, healthy}
    assert {module.RULE for module in modules} == set(PRECEDENCE)


def test_every_cause_belongs_to_exactly_one_state():
    assert sorted(cause for causes in CAUSES.values() for cause in causes) == sorted(Cause)


def test_evidence_is_words_with_numbers():
    found = admission.judge(signals(every=queue(12.0) | usage(0.876), capacity_tokens=10_000, next_prompt_tokens=1500.0), POLICY)
    assert found.evidence == ("12 requests waiting", "1 240 KV tokens free at the fullest moment, the next admission may need 2 250")


@pytest.mark.parametrize(
    ("rule", "found", "said"),
    [
        pytest.param(
            admission,
            signals(every=queue(9.0) | usage(0.7), sequence_share=0.3),
            ("9 requests waiting", "30 % free at the fullest moment, the next admission may need 45 %"),
            id="the pool is not known: shares of it",
        ),
        pytest.param(
            admission,
            signals(every=queue(9.0) | usage(0.95) | {"running": None}),
            ("9 requests waiting", "KV cache at 95 % at its fullest"),
            id="nothing is said of a batch that is not reported",
        ),
        pytest.param(
            sequence_slots,
            signals(every=queue(9.0) | usage(0.2) | {"running": steady(7.0)}, running_ceiling=8.0, at_ceiling_share=1.0),
            ("9 requests waiting", "running stands at 7, the most ever seen, as under a limit on sequences (--max-num-seqs)"),
            id="what the samples show",
        ),
        pytest.param(
            sequence_slots,
            signals(every=queue(9.0) | usage(0.2) | {"running": steady(3.0)}, running_ceiling=8.0, sequences_decoding=7.5),
            (
                "9 requests waiting",
                "7.5 sequences get tokens at a time, about the most there ever were, as under a limit on sequences (--max-num-seqs)",
            ),
            id="what the counters say",
        ),
        pytest.param(
            sequence_slots,
            signals(every=queue(9.0) | usage(0.2), running_ceiling=8.0, at_ceiling_share=1.0, ceiling_known=True, sequence_share=0.1),
            ("9 requests waiting", "running stands at 8, max_num_seqs", "KV cache at 20 % at its fullest, one more may need 15 %"),
            id="what the operator knows",
        ),
        pytest.param(
            stalled,
            signals(seconds_without_life=30.0, running=9.0, clients_left=True),
            ("9 running and 0 waiting since 30 s, but as many clients have left since: the gauges show the moment before",),
            id="the work has left",
        ),
        pytest.param(
            stalled,
            signals(seconds_without_life=12.0, waiting=7.0),
            ("0 running and 7 waiting, and no counter or gauge has moved for 12 s: the engine does not step",),
            id="nothing moves",
        ),
        pytest.param(
            stalled,
            signals(seconds_without_progress=70.0, running=1.0),
            ("1 running and 0 waiting, no token has come out and no prompt got further for 70 s: although the engine still steps",),
            id="it steps in vain",
        ),
        pytest.param(
            stalled,
            signals(seconds_without_progress=70.0, seconds_without_life=65.0, running=1.0),
            ("1 running and 0 waiting, no token has come out and no prompt got further for 70 s: no counter or gauge has moved either",),
            id="for long",
        ),
        pytest.param(
            frontend,
            signals(every=queue(5.0), gpu_utilization=0.55),
            ("the GPU is 55 % busy while 5 requests wait",),
            id="the GPU waits",
        ),
    ],
)
def test_what_the_evidence_says(rule, found, said):
    assert rule.judge(found, POLICY).evidence == said


@pytest.mark.parametrize(
    ("windows", "shown"),
    [
        pytest.param(
            queue(6.0) | usage(0.87) | {"running": steady(9.0), "queued_share": 0.75},
            ["9", "6", "75 %", "87 %"],
            id="known",
        ),
        pytest.param(
            {"running": None, "queue": None, "queued_share": None, "kv_usage": None},
            [None, None, None, None],
            id="not reported",
        ),
    ],
)
def test_numbers_that_several_rules_show(windows, shown):
    values = [(one, one.value(signals(every=windows))) for one in (RUNNING, *QUEUE, FULLEST)]
    assert [None if value is None else one.written(value) for one, value in values] == shown


def test_a_queue_that_nobody_can_explain_is_not_health():
    found = find(signals(every=queue(9.0) | {"kv_usage": None}), POLICY)
    assert (found.cause, found.evidence) == (
        Cause.AMBIGUOUS,
        ("9 requests waiting", "vLLM reports too few of its numbers to tell; missing: KV cache usage"),
    )


def test_no_eviction_is_claimed_only_where_evictions_are_counted():
    assert "preemptions are not reported in these 30 s" in find(signals(every={"preemptions": None}), POLICY).evidence
    assert "0 preemptions in 30 s" in find(signals(), POLICY).evidence


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1, "1 preemption"),
        (2, "2 preemptions"),
        (0, "0 preemptions"),
        (1.5, "1.5 preemptions"),
        (1234, "1 234 preemptions"),
        (9.98, "10 preemptions"),
    ],
)
def test_counts_are_said_as_people_say_them(value, said):
    assert counted(value, "preemption") == said


def test_a_stall_of_deferred_requests_alone_names_the_peer():
    every = {"deferred": steady(2.0), "waiting": steady(2.0)}
    silent = signals(every=every, running=0.0, waiting=2.0, seconds_without_life=20.0)
    (evidence,) = stalled.judge(silent, POLICY).evidence
    assert evidence.endswith("all of them wait for remote KV, LoRA or grammar: the peer that should deliver is silent")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"sequence_share": 0.12}, Cause.ADMISSION, id="a flat batch with less than one sequence free"),
        pytest.param({"sequence_share": 0.12, "ceiling_known": True}, Cause.SEQUENCE_SLOTS, id="the slots are known and taken"),
        pytest.param({"sequence_share": 0.02}, Cause.SEQUENCE_SLOTS, id="room for two more"),
        pytest.param(
            {"sequence_share": 0.12, "usage_at_ceiling": 0.8}, Cause.SEQUENCE_SLOTS, id="room at a moment when the slots were taken"
        ),
        pytest.param({"sequence_share": 0.12, "usage_at_ceiling": 0.9}, Cause.ADMISSION, id="never room"),
        pytest.param({"sequence_share": None}, Cause.SEQUENCE_SLOTS, id="sizes unknown: the count stands still"),
    ],
)
def test_what_would_let_more_run(fields, expected):
    """8 run, 4 wait, and the cache was 95 % full: 5 % are left for what the next one needs."""
    full = signals(every=queue(4.0) | usage(0.95), running_ceiling=8.0, at_ceiling_share=0.7, **fields)
    assert find(full, POLICY).cause is expected


def test_both_limits_at_once_are_said():
    found = signals(every=queue(4.0) | usage(0.95), running_ceiling=8.0, at_ceiling_share=1.0, sequence_share=0.12, ceiling_known=True)
    assert sequence_slots.judge(found, POLICY).evidence[-1].endswith("blocks are right behind the slots")


def test_a_shared_prefix_is_needed_once():
    """8 300 prompt tokens of which 8 000 are cached; 32 sequences hold 78 % of 30 000 tokens."""
    shared: dict[str, Any] = {"next_prompt_tokens": 8300.0, "prefix_hit_ratio": 0.96, "output_tokens": 180.0, "sequence_share": 0.024}
    found = signals(every=queue(28.0) | usage(0.82), capacity_tokens=30_000, running_ceiling=32.0, at_ceiling_share=0.9, **shared)
    assert find(found, POLICY).cause is Cause.SEQUENCE_SLOTS


def test_an_idle_engine_says_what_is_held_by_nobody():
    assert (
        idle.judge(signals(idle=True, held_at_rest=0.35), POLICY)
        .evidence[-1]
        .startswith("35 % of the KV cache is held although nothing runs")
    )
    assert len(idle.judge(signals(idle=True, held_at_rest=0.0), POLICY).evidence) == 1


def test_a_crawling_engine_is_not_held_back_by_nothing():
    slow = signals(slowdown=Saturation(running_then=8.0, tokens_per_second_then=240.0, running_now=8.0, tokens_per_second_now=3.2))
    assert find(slow, POLICY).cause is Cause.COMPUTE


def test_a_queue_that_no_scrape_found_empty_for_two_polls_is_one():
    fresh = signals(every={"queue": GaugeStats(0.7, 0.0, 1.0, 1.0), "queued_share": 0.5, "kv_usage": None}, queued_seconds=5.0)
    assert find(fresh, POLICY).state is State.UNKNOWN
    assert find(replace(fresh, queued_seconds=3.0), POLICY).state is State.HEALTHY
