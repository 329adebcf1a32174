from __future__ import annotations

from random import Random

import pytest

from kvwatch.errors import UsageError
from kvwatch.simulator.config import Names, ServerConfig
from kvwatch.simulator.scheduler import Request, Scheduler


def config(**flags) -> ServerConfig:
    given = {"num_gpu_blocks": 11, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 2048, "max_model_len": 128}
    return ServerConfig(**{**given, **flags})


def request(number: int, prompt: int, output: int = 10, shared_prefix: int = 0) -> Request:
    return Request(number=number, prompt=prompt, output=output, arrived=0.0, shared_prefix=shared_prefix)


def scheduler_with(*requests: Request, **flags) -> Scheduler:
    scheduler = Scheduler(config(**flags))
    for each in requests:
        scheduler.add(each)
    return scheduler


def step(scheduler: Scheduler) -> list[Request]:
    return scheduler.complete(scheduler.plan())


def held(scheduler: Scheduler) -> int:
    return len({block for each in scheduler.running for block in each.blocks})


def test_head_of_the_queue_that_does_not_fit_blocks_a_smaller_one_behind_it():
    scheduler = scheduler_with(request(0, 96), request(1, 80), request(2, 16))
    plan = scheduler.plan()
    assert [each.number for each in plan.admitted] == [0], "6 of 10 blocks are held, 5 do not fit, and nobody overtakes"
    assert scheduler.pool.free == 4


def test_whole_prompt_must_fit_even_when_only_a_chunk_of_it_would_be_computed_first():
    scheduler = scheduler_with(request(0, 96), max_num_batched_tokens=97)
    step(scheduler)
    scheduler.add(request(1, 80))
    plan = scheduler.plan()
    assert scheduler.pool.free == 3
    assert plan.admitted == [], "3 free blocks would do for a start, but the whole prompt needs 5"


def test_blocks_a_half_prefilled_prompt_will_need_are_not_given_to_the_next():
    first = request(0, 96)
    scheduler = scheduler_with(first, max_num_batched_tokens=40)
    step(scheduler)
    assert len(first.blocks) == 3
    scheduler.add(request(1, 80))
    scheduler.config = config(max_num_batched_tokens=50)
    plan = scheduler.plan()
    assert [(each.number, tokens) for each, tokens in plan.work] == [(0, 50)]
    scheduler.complete(plan)
    scheduler.config = config(max_num_batched_tokens=60)
    assert scheduler.pool.free == 4
    assert scheduler.plan().admitted == []


def test_reservation_counts_the_blocks_the_running_prompt_still_lacks():
    first, second = request(0, 96), request(1, 64)
    scheduler = scheduler_with(first, max_num_batched_tokens=16)
    step(scheduler)
    scheduler.add(second)
    scheduler.running[0].computed = 16
    scheduler.config = config(max_num_batched_tokens=20)
    plan = scheduler.plan()
    assert plan.admitted == [], "the budget is spent on the first"
    scheduler.complete(plan)
    # 3 of 10 blocks held, 3 reserved for the first: 4 are left, exactly what 64 tokens need.
    assert [each.number for each, _ in scheduler._admit(8)] == [1]


def test_long_prompt_is_computed_in_chunks_of_the_budget():
    long = request(0, 100)
    scheduler = scheduler_with(long, max_num_batched_tokens=40)
    chunks = []
    while not long.generated:
        plan = scheduler.plan()
        chunks.append(plan.tokens)
        scheduler.complete(plan)
    assert chunks == [40, 40, 20]


def test_decoding_goes_before_prefill_in_the_budget():
    scheduler = scheduler_with(request(0, 16), max_num_batched_tokens=32)
    step(scheduler)
    scheduler.add(request(1, 64))
    plan = scheduler.plan()
    assert [(each.number, tokens) for each, tokens in plan.work] == [(0, 1), (1, 31)]
    assert plan.prefill_tokens == 31


def test_prefill_of_a_long_context_costs_more_pairs_than_a_short_one():
    long = request(0, 64)
    scheduler = scheduler_with(long, max_num_batched_tokens=32)
    first = scheduler.plan()
    scheduler.complete(first)
    second = scheduler.plan()
    assert (first.prefill_pairs, second.prefill_pairs) == (32 * 16, 32 * 48)


def test_newest_running_request_is_preempted_and_queued_before_all_others():
    old, new, waiting = request(0, 80), request(1, 80), request(2, 80)
    scheduler = scheduler_with(old, new, waiting)
    step(scheduler)
    assert [each.number for each in scheduler.running] == [0, 1]
    assert scheduler.pool.free == 0
    plan = scheduler.plan()
    assert [each.number for each in plan.preempted] == [1]
    assert plan.admitted == [], "vLLM admits nobody in a step that preempts"
    assert [each.number for each in scheduler.waiting] == [1, 2]
    assert (new.computed, new.generated, new.blocks) == (0, 1, [])
    assert old.blocks, "the older one goes on"


def test_request_that_is_itself_the_newest_gives_way():
    scheduler = scheduler_with(request(0, 70), request(1, 80))
    step(scheduler)
    assert scheduler.pool.free == 0
    plan = scheduler.plan()
    assert [each.number for each in plan.preempted] == [1], "the older one's 71st token fits its blocks, the newer one's 81st does not"
    assert [each.number for each, _ in plan.work] == [0]


def test_preempted_request_needs_room_for_what_it_had_generated_too():
    scheduler = scheduler_with(request(0, 80), request(1, 80), enable_prefix_caching=False)
    step(scheduler)
    scheduler.plan()
    preempted = scheduler.waiting[0]
    assert preempted.length == 81, "80 prompt tokens and the one that came out"
    assert scheduler.pool.free == 4
    assert scheduler.plan().admitted == [], "81 tokens are 6 blocks"


@pytest.mark.parametrize(("caching", "recomputed"), [pytest.param(True, 17, id="cached"), pytest.param(False, 81, id="from zero")])
def test_preempted_request_takes_back_blocks_that_were_not_handed_out_again(caching, recomputed):
    old, new = request(0, 80, output=2), request(1, 80)
    scheduler = scheduler_with(old, new, enable_prefix_caching=caching)
    step(scheduler)
    step(scheduler)  # the old one takes the preempted one's last block, gives its second token and is done
    assert list(scheduler.waiting) == [new]
    plan = scheduler.plan()
    assert plan.admitted == [new]
    assert plan.prefill_tokens == recomputed, "81 tokens, of which four blocks of 16 are still there"


def test_prompts_with_a_common_beginning_share_its_blocks():
    scheduler = scheduler_with(request(0, 48, shared_prefix=32))
    step(scheduler)
    second = request(1, 48, shared_prefix=32)
    scheduler.add(second)
    plan = scheduler.plan()
    assert second.cached_at_admission == 32
    assert plan.prefill_tokens == 16
    assert held(scheduler) == 5, "3 blocks, one for the first's next token, and only one more for the second"


def test_finished_request_frees_its_blocks_and_leaves():
    scheduler = scheduler_with(request(0, 16, output=1))
    assert [each.number for each in step(scheduler)] == [0]
    assert scheduler.running == []
    assert scheduler.pool.usage == 0.0
    assert not scheduler.has_work


def test_abort_of_everything_frees_everything():
    scheduler = scheduler_with(request(0, 80), request(1, 80), request(2, 80))
    step(scheduler)
    assert [each.number for each in scheduler.abort_all()] == [0, 1, 2]
    assert scheduler.pool.usage == 0.0
    assert not scheduler.has_work


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("caching", [True, False])
def test_invariants_hold_under_random_load(seed, caching):
    random = Random(seed)  # noqa: S311 - repeatable
    flags = config(
        num_gpu_blocks=random.randint(20, 60),
        max_num_seqs=random.randint(1, 12),
        max_num_batched_tokens=random.randint(8, 400),
        max_model_len=256,
        enable_prefix_caching=caching,
    )
    scheduler = Scheduler(flags)
    added, first_admissions, finished, preemptions = 0, [], 0, 0
    for _ in range(1500):
        if added < 150 and random.random() < 0.3:
            prompt = random.randint(1, 200)
            scheduler.add(request(added, prompt, random.randint(1, 256 - prompt), shared_prefix=random.choice([0, 40])))
            added += 1
        if not scheduler.has_work:
            continue
        known = {each.number for each in scheduler.running} | {each.number for each in scheduler.waiting if each.preemptions}
        plan = scheduler.plan()
        preemptions += len(plan.preempted)
        first_admissions += [each.number for each in plan.admitted if each.number not in known]
        assert plan.work, "somebody always gets on: no deadlock"
        assert plan.tokens <= flags.max_num_batched_tokens
        assert len(scheduler.running) <= flags.max_num_seqs
        assert 0 <= scheduler.pool.free <= scheduler.pool.capacity
        assert held(scheduler) + scheduler.pool.free == scheduler.pool.capacity
        assert not (plan.preempted and plan.admitted)
        if plan.preempted:
            assert scheduler.waiting[0] is plan.preempted[-1], "the oldest of the preempted is the next to run"
        for each, tokens in plan.work:
            assert tokens >= 1
            assert len(each.blocks) * flags.block_size >= each.computed + tokens
        emitted = scheduler.complete(plan)
        finished += sum(each.generated >= each.output for each in emitted)
    assert first_admissions == sorted(first_admissions), "first come, first served"
    assert finished > 20
    assert preemptions > 0 or flags.max_num_seqs < 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param({"max_num_seqs": 0}, "max_num_seqs must be at least 1, not 0", id="no slots"),
        pytest.param({"max_model_len": 161}, "does not fit the KV cache", id="one request larger than the pool"),
        pytest.param({"names": Names.V0, "data_parallel_size": 2}, "no data parallelism", id="V0 with engines"),
    ],
)
def test_flags_vllm_would_refuse_are_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        config(**flags)
