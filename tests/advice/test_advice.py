"""Cause, signals and configuration become advice with numbers someone worked out."""

from __future__ import annotations

import re
from dataclasses import replace
from operator import attrgetter

import pytest
from first_look import first_look, sized

from kvwatch.advice import levers
from kvwatch.advice.advise import LEVERS, advise
from kvwatch.advice.followed import Followed, Observed
from kvwatch.advice.inputs import AdviceInputs
from kvwatch.advice.levers import around, memory, scale, slots
from kvwatch.advice.neighbours import Neighbours, Peers
from kvwatch.config.policy import KnownConfig
from kvwatch.model import (
    CAUSES,
    Cause,
    EngineConfig,
    EngineId,
    GaugeStats,
    Quantiles,
    Saturation,
    Signals,
    State,
    Verdict,
    Window,
    recommended_max_num_seqs,
)

ENGINE = EngineId("demo-8b", "0")
STATE_OF = {cause: state for state, causes in CAUSES.items() for cause in causes}
# As the recordings' servers label themselves: 160 blocks of 32 tokens.
CONFIG = EngineConfig(
    kv_cache_size_tokens=5120,
    num_gpu_blocks=160,
    block_size=32,
    max_model_len=4096,
    cache_dtype="auto",
    gpu_memory_utilization=0.92,
    enable_prefix_caching=True,
)
KNOWN = KnownConfig(max_num_seqs=64, max_num_batched_tokens=2048, vllm_version="0.32.0")


def gauge(mean, peak=None):
    return GaugeStats(mean=mean, low=0, peak=mean if peak is None else peak, last=mean)


def signals(running=10.0, waiting=18.0, **changes):
    """A storm like the recordings': 300-byte prompts, 200 tokens out, 5120 tokens of pool."""
    window = Window(
        seconds=30,
        samples=7,
        running=gauge(running, running + 4),
        waiting=gauge(waiting),
        kv_usage=gauge(0.9, 1.0),
    )
    given = {
        "running": running,
        "running_while_queued": running,
        "waiting": waiting,
        "kv_usage": 0.97,
        "capacity_tokens": 5120,
        "tokens_per_sequence": 400.0,
        "next_prompt_tokens": 301.0,
        "output_tokens": 200.0,
        "demand_ratio": 2.6,
        "sequence_share": 0.08,
        "free_tokens": 150.0,
        "tokens_per_step": 256.0,
    }
    return Signals(at=100.0, recent=window, fast=window, slow=window, **given | changes)


def verdict(cause):
    return Verdict(ENGINE, STATE_OF[cause], cause, ("evidence",), 90.0)


def advised(cause, found=None, config=CONFIG, known=KNOWN):
    return first_look(verdict(cause), signals() if found is None else found, config, known)


def change(changes, lever):
    return next((c for c in changes if c.lever == lever), None)


EVERY_LEVER = sorted(
    {
        f"{module.__name__.rsplit('.', 1)[-1]}.{name}"
        for module in (around, memory, scale, slots)
        for name, f in vars(module).items()
        if callable(f) and getattr(f, "__module__", "") == module.__name__ and not name.startswith("_")
    }
)


def test_every_lever_is_tied_to_a_cause():
    tied = {f"{lever.__module__.rsplit('.', 1)[-1]}.{lever.__name__}" for found in LEVERS.values() for lever in found}
    assert tied | {"around.let_kvwatch_see"} == set(EVERY_LEVER)
    assert levers.__doc__


def test_every_cause_has_levers_or_is_blind_or_healthy():
    assert set(LEVERS) == set(Cause) - set(CAUSES[State.UNKNOWN])
    assert {cause for cause, found in LEVERS.items() if not found} == {Cause.OK, Cause.IDLE}


@pytest.mark.parametrize("cause", [Cause.OK, Cause.IDLE])
def test_a_healthy_engine_gets_no_advice(cause):
    assert advised(cause) == ()


class TestFewerSequences:
    def test_requests_of_like_length_are_sized_by_their_end(self):
        first = advised(Cause.PREEMPTING)[0]
        # 301 + 200 = 501, in blocks of 32: 512. They hold 400 on average, just what 301 + 200 / 2 is.
        assert (first.lever, first.current, first.proposed) == ("--max-num-seqs", "64", "10")
        assert first.reason == "5 120 KV tokens ÷ 512 tokens per sequence at its end"

    def test_where_lengths_vary_the_running_ones_set_the_size(self):
        # The long ones stay longest: 500 held where the mean request would hold 401. 500 + 200 / 2 = 600: 5120 ÷ 600 = 8.5.
        first = advised(Cause.PREEMPTING, signals(tokens_per_sequence=500.0))[0]
        assert first.proposed == "8"
        assert first.reason == "5 120 KV tokens ÷ 600 tokens per sequence at its end"

    def test_half_grown_sequences_do_not_set_the_size(self):
        # 100 + 1600 → 1728 at the end, although those running, preempted young, hold 700.
        found = signals(capacity_tokens=20480, next_prompt_tokens=100.0, output_tokens=1600.0, tokens_per_sequence=700.0)
        assert advised(Cause.PREEMPTING, found)[0].proposed == "11"

    def test_prompts_that_share_blocks_count_as_seen(self):
        # 100 hold 5700 tokens of their 6000-token prompts together, and 300 + 100 each: 457 of all for each. Each grows to 508 of its own
        # (6200 in whole blocks, less 5700): (40960 - 5700) ÷ 508 = 69.4, and not 40960 ÷ 557 of as many as run now.
        found = signals(next_prompt_tokens=6000.0, tokens_per_sequence=457.0, prefix_hit_ratio=0.95, capacity_tokens=40960, running=100.0)
        assert advised(Cause.PREEMPTING, found, known=KnownConfig(max_num_seqs=256))[0].proposed == "69"

    def test_a_low_holding_without_hits_is_no_sharing(self):
        found = signals(next_prompt_tokens=1000.0, tokens_per_sequence=300.0, prefix_hit_ratio=0.0)
        assert advised(Cause.PREEMPTING, found)[0].proposed == "4"  # 1000 + 200 → 1216

    def test_without_a_pool_the_share_of_it_is_enough(self):
        first = advised(Cause.PREEMPTING, signals(capacity_tokens=None, tokens_per_sequence=None), EngineConfig())[0]
        assert first.proposed == "10"
        assert first.reason == "a running sequence holds 8.0 % of the pool: 1 ÷ 0.080 × 0.8"

    def test_without_any_size_it_says_what_to_look_up(self):
        found = signals(capacity_tokens=None, tokens_per_sequence=None, sequence_share=None)
        first = advised(Cause.PREEMPTING, found, EngineConfig())[0]
        assert (first.lever, first.current, first.proposed) == ("--max-num-seqs", "64", None)
        assert "'KV cache size: N tokens' in the startup log" in first.reason

    def test_when_nothing_finishes_the_number_is_called_a_start(self):
        first = advised(Cause.PREEMPTING, signals(output_tokens=None))[0]
        assert first.proposed == "10"
        assert first.reason == "5 120 KV tokens ÷ 400 tokens per sequence × 0.8"
        assert "nothing has finished yet" in first.caution

    def test_the_mean_fits_and_yet_they_are_preempted_so_one_step_down(self):
        first = advised(Cause.PREEMPTING, signals(running=7.0), known=KnownConfig(max_num_seqs=8))[0]
        assert (first.current, first.proposed) == ("8", "5")  # 7 × 0.8
        assert "the mean size would allow 10" in first.reason

    def test_a_number_that_running_never_reaches_would_change_nothing(self):
        # 5 running on average and 9 at most are preempted, so a limit of 10 is none: 5 × 0.8.
        first = advised(Cause.PREEMPTING, signals(running=5.0))[0]
        assert (first.current, first.proposed) == ("64", "4")

    def test_one_sequence_cannot_become_fewer(self):
        changes = advised(Cause.PREEMPTING, known=KnownConfig(max_num_seqs=1))
        assert change(changes, "--max-num-seqs") is None
        assert [c.lever for c in changes[:2]] == ["replicas", "--kv-cache-dtype"]

    def test_a_sequence_larger_than_the_pool_leaves_one(self):
        found = signals(next_prompt_tokens=6000.0, tokens_per_sequence=None)
        assert advised(Cause.PREEMPTING, found)[0].proposed == "1"

    def test_redone_work_is_named(self):
        assert advised(Cause.PREEMPTING, signals(recompute_ratio=0.27))[0].reason.endswith("about 27 % of the work is being done again")

    def test_the_current_number_is_not_invented(self):
        assert advised(Cause.PREEMPTING, known=KnownConfig())[0].current is None


class TestMoreSequences:
    ROOMY = EngineConfig(kv_cache_size_tokens=32000, block_size=32, cache_dtype="auto", gpu_memory_utilization=0.95)

    def roomy(self, **changes):
        return signals(**{"running": 4.0, "waiting": 28.0, "capacity_tokens": 32000, "demand_ratio": 0.4, "running_ceiling": 4.0} | changes)

    def test_as_many_as_want_to_run_where_the_cache_holds_more(self):
        first = advised(Cause.SEQUENCE_SLOTS, self.roomy(), self.ROOMY, KnownConfig(max_num_seqs=4))[0]
        assert (first.lever, first.current, first.proposed) == ("--max-num-seqs", "4", "32")
        assert first.reason == "the cache holds 62 (32 000 KV tokens ÷ 512 tokens per sequence at its end), 32 want to run"

    def test_as_many_as_the_cache_holds_where_more_want_to_run(self):
        first = advised(Cause.SEQUENCE_SLOTS, self.roomy(waiting=200.0), self.ROOMY, KnownConfig(max_num_seqs=4))[0]
        assert first.proposed == "62"

    def test_a_larger_cache_is_advised_only_where_it_is_the_next_limit(self):
        config, known = replace(self.ROOMY, gpu_memory_utilization=0.9), KnownConfig(max_num_seqs=4)
        assert [c.lever for c in advised(Cause.SEQUENCE_SLOTS, self.roomy(), config, known)] == ["--max-num-seqs"]
        more = advised(Cause.SEQUENCE_SLOTS, self.roomy(waiting=200.0), config, known)
        assert [c.lever for c in more] == ["--max-num-seqs"]  # 62 fit, and 4 may run
        behind = advised(Cause.SEQUENCE_SLOTS, self.roomy(waiting=200.0), config, KnownConfig(max_num_seqs=60))
        assert [c.lever for c in behind] == ["--kv-cache-dtype", "--gpu-memory-utilization"]  # 62 and 60 are one number

    def test_an_inferred_ceiling_is_called_inferred(self):
        first = advised(Cause.SEQUENCE_SLOTS, self.roomy(), self.ROOMY, KnownConfig())[0]
        assert first.current == "4"
        assert first.reason.startswith("4 is inferred from the plateau of the running count")

    def test_no_raise_past_what_the_cache_holds(self):
        changes = advised(Cause.SEQUENCE_SLOTS, signals(demand_ratio=1.8), CONFIG, KnownConfig(max_num_seqs=10))
        assert change(changes, "--max-num-seqs") is None
        assert changes[0].lever == "replicas"

    def test_without_a_size_it_says_what_to_look_up(self):
        found = self.roomy(capacity_tokens=None, tokens_per_sequence=None, sequence_share=None)
        first = advised(Cause.SEQUENCE_SLOTS, found, EngineConfig(), KnownConfig(max_num_seqs=4))[0]
        assert first.proposed is None
        assert "startup log" in first.reason


class TestMemory:
    @pytest.mark.parametrize(("now", "proposed"), [(0.85, "0.92"), (0.9, "0.92"), (0.92, "0.95"), (0.95, None), (0.98, None), (None, None)])
    def test_utilization_goes_up_in_steps_and_never_past_0_95(self, now, proposed):
        found = change(advised(Cause.ADMISSION, config=replace(CONFIG, gpu_memory_utilization=now)), "--gpu-memory-utilization")
        assert (found.proposed if found else None) == proposed

    @pytest.mark.parametrize(
        ("dtype", "proposed"), [("auto", "fp8"), ("bfloat16", "fp8"), ("fp8", None), ("fp8_e4m3", None), ("nvfp4", None), (None, None)]
    )
    def test_eight_bit_kv_where_it_is_sixteen(self, dtype, proposed):
        found = change(advised(Cause.ADMISSION, config=replace(CONFIG, cache_dtype=dtype)), "--kv-cache-dtype")
        assert (found.proposed if found else None) == proposed

    def test_eight_bit_kv_doubles_the_pool(self):
        assert change(advised(Cause.ADMISSION), "--kv-cache-dtype").reason == "half the bytes per token: 5 120 → about 10 240 tokens"

    @pytest.mark.parametrize(("on", "lever"), [(False, True), (True, False), (None, False)])
    def test_prefix_caching_only_where_it_is_off(self, on, lever):
        found = change(advised(Cause.ADMISSION, config=replace(CONFIG, enable_prefix_caching=on)), "--enable-prefix-caching")
        assert (found is not None) is lever

    def test_long_prompts_that_share_nothing(self):
        found = change(advised(Cause.ADMISSION, signals(next_prompt_tokens=1550.0, prefix_hit_ratio=0.01)), "order of the prompt")
        assert found.reason.startswith("prompts of 1 550 tokens and 1.0 % of them found in the prefix cache (a block is 32 tokens)")
        assert change(advised(Cause.ADMISSION, signals(prefix_hit_ratio=0.01)), "order of the prompt") is None

    def test_a_limit_far_above_the_requests_is_named_without_a_guess(self):
        found = change(advised(Cause.PREEMPTING), "--max-model-len")
        assert (found.current, found.proposed) == ("4096", None)
        assert "a request takes 501 tokens on average, 4 096 are allowed" in found.reason
        assert change(advised(Cause.PREEMPTING, known=KnownConfig(max_model_len=1024)), "--max-model-len") is None

    def test_four_bit_weights_where_more_want_to_run_than_fit(self):
        assert change(advised(Cause.PREEMPTING), "4-bit weights (AWQ or GPTQ)").reason.startswith("28 sequences want to run, 10 fit")
        assert change(advised(Cause.ADMISSION, signals(running=4.0, waiting=2.0)), "4-bit weights (AWQ or GPTQ)") is None

    def test_a_backlog_does_not_count_replicas(self):
        found = change(advised(Cause.ADMISSION, signals(demand_ratio=12.0)), "replicas")
        assert found.proposed is None
        assert "look up how many requests arrive a second" in found.reason

    @pytest.mark.parametrize(("demand", "count"), [(2.6, "3"), (1.2, "2"), (1.0, None), (0.4, None), (None, None)])
    def test_replicas_follow_kv_demand(self, demand, count):
        found = change(advised(Cause.ADMISSION, signals(demand_ratio=demand)), "replicas")
        assert (found.proposed if found else None) == count


class TestCompute:
    def test_a_known_step_budget_makes_room_for_two_prompts(self):
        first = advised(Cause.STEP_BUDGET, signals(next_prompt_tokens=1550.0), known=KnownConfig(max_num_batched_tokens=256))[0]
        assert (first.lever, first.current, first.proposed) == ("--max-num-batched-tokens", "256", "4096")

    def test_a_budget_above_two_prompts_is_doubled(self):
        assert advised(Cause.STEP_BUDGET, known=KnownConfig(max_num_batched_tokens=2048))[0].proposed == "4096"

    def test_an_unknown_budget_is_read_from_the_steps(self):
        first = advised(Cause.STEP_BUDGET, signals(next_prompt_tokens=1550.0), known=KnownConfig())[0]
        assert (first.current, first.proposed) == (None, "4096")
        assert first.reason.startswith("steps take 256 tokens")

    def test_nothing_known_says_what_to_look_up(self):
        first = advised(Cause.STEP_BUDGET, signals(next_prompt_tokens=None), known=KnownConfig())[0]
        assert first.proposed is None
        assert "look up max_num_batched_tokens" in first.reason

    @pytest.mark.parametrize(
        ("version", "advised_it"), [("0.6.3", True), ("0.7.3", True), ("0.8.0", False), ("0.32.0", False), (None, False)]
    )
    def test_chunked_prefill_only_where_vllm_does_not_do_it_already(self, version, advised_it):
        changes = advised(Cause.STEP_BUDGET, known=KnownConfig(vllm_version=version))
        assert (change(changes, "--enable-chunked-prefill") is not None) is advised_it

    def test_replicas_by_the_batch_that_still_paid(self):
        found = signals(running=64.0, waiting=64.0, saturation=Saturation(32, 1000, 64, 1010))
        changes = advised(Cause.COMPUTE, found)
        assert [c.lever for c in changes] == ["replicas", "--max-num-seqs"]
        assert changes[0].proposed == "4"  # 128 ÷ 32
        assert (changes[1].current, changes[1].proposed) == ("64", "32")

    def test_replicas_without_a_curve_say_what_to_look_up(self):
        changes = advised(Cause.COMPUTE)
        assert [c.lever for c in changes] == ["replicas"]
        assert changes[0].proposed is None
        assert "look up how many requests arrive a second" in changes[0].reason

    def test_uneven_decoding_gets_a_smaller_step(self):
        found = signals(inter_token_latency=Quantiles(p50=0.02, p95=0.1, p99=0.4, mean=0.03, count=1000))
        smaller = change(advised(Cause.COMPUTE, found, known=KnownConfig(max_num_batched_tokens=8192)), "--max-num-batched-tokens")
        assert (smaller.current, smaller.proposed) == ("8192", "1024")  # twice 301, as a power of two
        assert change(advised(Cause.COMPUTE, found, known=KnownConfig(max_num_batched_tokens=1024)), "--max-num-batched-tokens") is None

    @pytest.mark.parametrize(
        ("version", "levers_of"),
        [
            ("0.32.0", ["--api-server-count", "--stream-interval"]),
            ("0.10.2", ["--api-server-count"]),
            ("0.9.0.1", []),
            (None, ["--api-server-count", "--stream-interval"]),
        ],
    )
    def test_the_frontends_levers_are_those_the_version_has(self, version, levers_of):
        changes = advised(Cause.FRONTEND, signals(process_cpu_ratio=0.98), known=KnownConfig(vllm_version=version))
        assert [c.lever for c in changes] == levers_of
        assert all(("needs vLLM >=" in c.caution) is (version is None) for c in changes)

    def test_api_servers_are_counted_from_the_cores_used(self):
        assert advised(Cause.FRONTEND, signals(process_cpu_ratio=0.98))[0].proposed == "2"
        assert advised(Cause.FRONTEND, signals(process_cpu_ratio=1.5))[0].proposed == "3"

    def test_an_idle_gpu_points_at_the_host(self):
        assert [c.lever for c in advised(Cause.FRONTEND, signals(gpu_utilization=0.4))] == ["the host in front of the GPU"]

    def test_deferred_requests_need_no_capacity(self):
        (only,) = advised(Cause.DEFERRED)
        assert "more KV, more slots or more replicas of this engine do not help" in only.caution

    def test_a_stalled_engine_is_restarted_after_its_traces_are_saved(self):
        (only,) = advised(Cause.STALLED, signals(seconds_without_life=45.0))
        assert only.reason == "there is work and no token has come out for 45 s"
        assert "py-spy dump" in only.caution

    def test_a_request_longer_than_the_pool_stalls_the_queue(self):
        first = advised(Cause.STALLED, config=replace(CONFIG, max_model_len=8192))[0]
        assert (first.lever, first.current, first.proposed) == ("--max-model-len", "8192", "5088")


def test_a_full_cache_without_a_queue_is_only_a_hint_to_scale():
    (only,) = advised(Cause.KV_HIGH)
    assert (only.lever, only.proposed) == ("replicas", None)
    assert "nothing is wrong now" in only.caution


@pytest.mark.parametrize(
    ("cause", "lever"),
    [
        (Cause.WARMING_UP, None),
        (Cause.UNREACHABLE, "the target's address"),
        (Cause.STALE, "the missing engine"),
        (Cause.NO_VLLM_METRICS, "the target's address"),
        (Cause.STATS_DISABLED, "--disable-log-stats"),
        (Cause.ASLEEP, "POST /wake_up"),
        (Cause.AMBIGUOUS, "one target per process, with names that kvwatch knows"),
    ],
)
def test_what_hides_the_numbers_is_named_even_without_signals(cause, lever):
    changes = advise(verdict(cause), None, EngineConfig(), KnownConfig())
    assert [c.lever for c in changes] == ([] if lever is None else [lever])


def test_every_unknown_cause_is_in_the_table_above_or_waits():
    silent = {cause for cause in CAUSES[State.UNKNOWN] if not advise(verdict(cause), None, EngineConfig(), KnownConfig())}
    assert silent == {Cause.WARMING_UP}


def test_a_bound_engine_without_signals_gets_no_numbers_from_nowhere():
    assert advise(verdict(Cause.PREEMPTING), None, CONFIG, KNOWN) == ()


@pytest.mark.parametrize("cause", list(Cause))
def test_no_lever_twice_and_every_sentence_filled(cause):
    found = signals(
        process_cpu_ratio=0.98,
        saturation=Saturation(5, 1000, 10, 1010),
        prefix_hit_ratio=0.0,
        next_prompt_tokens=1500.0,
        recompute_ratio=0.2,
    )
    changes = advise(verdict(cause), found, replace(CONFIG, enable_prefix_caching=False), KNOWN)
    assert len({c.lever for c in changes}) == len(changes)
    assert all(c.reason and c.effect and c.caution for c in changes)
    assert all(c.current != c.proposed for c in changes if c.proposed is not None)


@pytest.mark.parametrize("cause", list(LEVERS))
def test_gone_and_useless_levers_are_never_advised(cause):
    for version in (None, "0.6.3", "0.9.0", "0.32.0"):
        text = " ".join(c.lever for c in advise(verdict(cause), signals(process_cpu_ratio=0.98), CONFIG, KnownConfig(vllm_version=version)))
        assert "--swap-space" not in text
        assert "--preemption-mode" not in text


def test_the_recommended_number_is_that_of_the_advice():
    assert recommended_max_num_seqs(advised(Cause.PREEMPTING)) == 10
    assert recommended_max_num_seqs(advised(Cause.STALLED)) is None


def deferring(found, count):
    """The same, *count* of those that wait being deferred."""
    return replace(found, recent=replace(found.recent, deferred=gauge(count)))


def at_rest(usage):
    """A rank whose cache is *usage* full and where nobody waits."""
    found = signals(running=3.0, waiting=0.0)
    return replace(found, slow=replace(found.slow, kv_usage=gauge(usage), waiting=gauge(0.0)))


IDLE = at_rest(0.3)


# Signals and configurations that between them reach every lever.
SITUATIONS = [
    (signals(), CONFIG, KNOWN),
    (signals(next_prompt_tokens=1500.0, prefix_hit_ratio=0.0), CONFIG, KNOWN),
    (signals(), replace(CONFIG, enable_prefix_caching=False, max_model_len=8192), KNOWN),
    (signals(process_cpu_ratio=0.98, saturation=Saturation(5, 1000, 10, 1010)), CONFIG, KNOWN),
    (signals(gpu_utilization=0.4), CONFIG, KnownConfig(vllm_version="0.6.3")),
    (
        signals(inter_token_latency=Quantiles(p50=0.02, p95=0.1, p99=0.4, mean=0.03, count=1000)),
        CONFIG,
        KnownConfig(max_num_batched_tokens=8192),
    ),
    (signals(capacity_tokens=32000, running_ceiling=4.0, waiting=200.0), CONFIG, KnownConfig(max_num_seqs=4)),
    (signals(capacity_tokens=32000, running=60.0, waiting=200.0), CONFIG, KnownConfig(max_num_seqs=60)),
    (deferring(signals(running=0.0, waiting=5.0), 5.0), CONFIG, KNOWN),
]


@pytest.mark.parametrize("cause", list(Cause))
def test_the_readme_tells_exactly_the_levers_of_every_cause(repository, cause):
    said = {
        c.lever for situation in SITUATIONS for siblings in ((), (IDLE,)) for c in first_look(verdict(cause), *situation, siblings=siblings)
    }
    start = f"| `{STATE_OF[cause]}` | `{cause}` | "
    section = (repository / "docs" / "advice.md").read_text()
    (row,) = [line for line in section.splitlines() if line.startswith(start)]
    text = row.removeprefix(start)
    assert all(lever in text for lever in said)
    assert text.startswith("none") is (not said)
    assert set(re.findall(r"`(--[a-z-]+)`", text)) == {lever for lever in said if lever.startswith("--")}


@pytest.mark.parametrize("lever", sorted({lever for found in LEVERS.values() for lever in found}, key=attrgetter("__name__")))
def test_every_lever_is_reachable_by_some_signals(lever):
    causes = [cause for cause, found in LEVERS.items() if lever in found]
    after = (None, Followed("--max-num-seqs", "64", "10", Observed(0.34), Observed(0.0)))
    assert any(
        lever(AdviceInputs(verdict(cause), sized(found, config), config, known, followed, Neighbours(Peers((found, *siblings)))))
        is not None
        for cause in causes
        for found, config, known in SITUATIONS
        for followed in after
        for siblings in ((), (IDLE,))
    )


class TestOrder:
    """What costs nothing first, then by how many more it lets run; what would let nobody run is not said."""

    @pytest.mark.parametrize(
        ("name", "waiting", "demand", "expected"),
        [
            # 10 fit. 32 want to run: 22 are left out, fp8 lets 10 more run and replicas all.
            ("a demand of three pools", 22.0, 3.1, ["replicas", "--kv-cache-dtype", "--gpu-memory-utilization"]),
            # 14 want to run: 4 are left out, and either lets them run. What stands on the same card comes first.
            ("a little more than fits", 4.0, 1.4, ["--kv-cache-dtype", "replicas", "--gpu-memory-utilization"]),
            # 10.5 want to run: half a request is noise.
            ("as many as fit", 0.5, 1.05, ["--gpu-memory-utilization"]),
        ],
    )
    def test_by_gain(self, name, waiting, demand, expected):
        found = advised(Cause.ADMISSION, signals(waiting=waiting, demand_ratio=demand), known=KnownConfig())
        assert [c.lever for c in found if c.lever in ("replicas", "--kv-cache-dtype", "--gpu-memory-utilization")] == expected, name

    def test_the_gain_is_counted_in_requests_and_is_none_where_it_cannot_be(self):
        found = {c.lever: c.gain for c in advised(Cause.ADMISSION, signals(waiting=22.0, demand_ratio=3.1))}
        assert (found["replicas"], found["--kv-cache-dtype"], found["--gpu-memory-utilization"]) == (22.0, 10.0, None)

    def test_the_limit_that_costs_nothing_is_set_first(self):
        found = advised(Cause.PREEMPTING, signals(waiting=200.0, demand_ratio=3.9))
        assert [c.lever for c in found[:2]] == ["--max-num-seqs", "replicas"]


class TestBounds:
    @pytest.mark.parametrize(("peak", "advised_it"), [(0.1, False), (0.49, False), (0.5, True), (1.0, True)])
    def test_a_cache_that_is_mostly_empty_needs_no_more_of_it(self, peak, advised_it):
        found = signals()
        found = replace(found, fast=replace(found.fast, kv_usage=gauge(0.05, peak)))
        levers_of = {c.lever for c in advised(Cause.ADMISSION, found)}
        assert ({"--kv-cache-dtype", "--gpu-memory-utilization", "replicas"} & levers_of != set()) is advised_it

    @pytest.mark.parametrize(
        ("current", "prompt", "per_step", "proposed"),
        [
            (2048, 300.0, 2048.0, "4096"),
            (8192, 9000.0, 8192.0, "16384"),  # two prompts would be 32768
            (16384, 9000.0, 16384.0, None),  # steps are full, and longer ones do no more
            (65536, 300.0, 20000.0, None),
            (None, 5000.0, 2048.0, "16384"),
            (None, 300.0, 20000.0, None),
        ],
    )
    def test_a_step_is_not_made_larger_than_vllm_itself_ever_does(self, current, prompt, per_step, proposed):
        found = signals(next_prompt_tokens=prompt, tokens_per_step=per_step)
        step = change(advised(Cause.STEP_BUDGET, found, known=KnownConfig(max_num_batched_tokens=current)), "--max-num-batched-tokens")
        assert (step and step.proposed) == proposed

    @pytest.mark.parametrize(
        ("version", "proposed"),
        # 10 running grow by 100 tokens each: 1000 of 5120 are 20 %, more than the 5 % that help.
        [("0.34.0", "0.05"), ("0.24.0", "0.05"), ("0.23.0", None), ("nightly", None), (None, None)],
    )
    def test_a_watermark_where_it_is_known(self, version, proposed):
        found = change(advised(Cause.PREEMPTING, known=KnownConfig(vllm_version=version)), "--watermark")
        assert (found and found.proposed) == proposed

    def test_a_watermark_is_what_those_that_run_still_grow(self):
        found = change(advised(Cause.PREEMPTING, signals(capacity_tokens=50_000), known=KnownConfig(vllm_version="0.34.0")), "--watermark")
        assert found.proposed == "0.02"  # 1000 of 50 000

    @pytest.mark.parametrize(("version", "told"), [("0.34.0", True), ("0.33.0", False), (None, False)])
    def test_the_bound_on_loads_where_it_is_known(self, version, told):
        (only,) = advised(Cause.DEFERRED, known=KnownConfig(vllm_version=version))
        assert ("--max-num-inflight-kv-loads" in only.reason) is told


class TestNeighbours:
    @pytest.mark.parametrize("cause", [Cause.PREEMPTING, Cause.ADMISSION, Cause.SEQUENCE_SLOTS, Cause.COMPUTE, Cause.STEP_BUDGET])
    def test_ranks_with_room_come_before_replicas(self, cause):
        levers_of = [c.lever for c in first_look(verdict(cause), signals(demand_ratio=3.1), CONFIG, KNOWN, siblings=(IDLE, signals()))]
        assert "balance between the ranks" in levers_of
        assert "replicas" not in levers_of

    @pytest.mark.parametrize("usage", [0.51, 0.9])
    def test_ranks_as_full_as_this_one_do_not(self, usage):
        levers_of = [
            c.lever for c in first_look(verdict(Cause.ADMISSION), signals(demand_ratio=3.1), CONFIG, KNOWN, siblings=(at_rest(usage),))
        ]
        assert "replicas" in levers_of
        assert "balance between the ranks" not in levers_of

    def test_a_rank_where_others_wait_has_no_room(self):
        busy = replace(IDLE, slow=replace(IDLE.slow, waiting=gauge(1.0)))
        assert "replicas" in {
            c.lever for c in first_look(verdict(Cause.ADMISSION), signals(demand_ratio=3.1), CONFIG, KNOWN, siblings=(busy,))
        }

    def test_how_many_ranks_have_room_is_told(self):
        found = first_look(verdict(Cause.ADMISSION), signals(), CONFIG, KNOWN, siblings=(IDLE, signals(), at_rest(0.4)))
        assert change(found, "balance between the ranks").reason.startswith("2 of the 3 other ranks of this server, at 40 % of its cache")

    @pytest.mark.parametrize("cause", [Cause.PREEMPTING, Cause.ADMISSION, Cause.SEQUENCE_SLOTS, Cause.COMPUTE, Cause.STEP_BUDGET])
    def test_replicas_with_room_come_before_more_of_them(self, cause):
        found = first_look(verdict(cause), signals(demand_ratio=3.1), CONFIG, KNOWN, replicas=(IDLE, signals(), at_rest(0.4)))
        assert change(found, "balance between the replicas").reason.startswith("2 of the 3 other replicas of this model, at 40 % of")
        assert "replicas" not in {c.lever for c in found}

    def test_ranks_of_the_same_server_come_before_replicas_elsewhere(self):
        found = {c.lever for c in first_look(verdict(Cause.ADMISSION), signals(), CONFIG, KNOWN, siblings=(IDLE,), replicas=(IDLE,))}
        assert {one for one in found if one.startswith("balance")} == {"balance between the ranks"}

    @pytest.mark.parametrize(
        ("own", "theirs"),
        [
            pytest.param(200.0, 1.0, id="it only prefills"),
            pytest.param(1.0, 200.0, id="this one only prefills"),
            pytest.param(200.0, None, id="nothing has finished there"),
        ],
    )
    def test_a_replica_that_may_do_something_else_has_no_room_for_this_work(self, own, theirs):
        idle = replace(IDLE, output_tokens=theirs)
        found = first_look(verdict(Cause.ADMISSION), signals(output_tokens=own, demand_ratio=3.1), CONFIG, KNOWN, replicas=(idle,))
        assert "balance between the replicas" not in {c.lever for c in found}

    def test_a_peer_that_does_not_deliver_is_named_and_no_restart(self):
        found = deferring(signals(running=0.0, waiting=5.0), 5.0)
        assert [c.lever for c in advised(Cause.STALLED, found)] == ["the peer that should deliver"]

    @pytest.mark.parametrize(("running", "deferred"), [(1.0, 5.0), (0.0, 4.0), (0.0, 0.0)])
    def test_an_engine_that_has_work_of_its_own_is_restarted(self, running, deferred):
        found = deferring(signals(running=running, waiting=5.0), deferred)
        assert [c.lever for c in advised(Cause.STALLED, found)] == ["restart the server"]
