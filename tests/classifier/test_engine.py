from __future__ import annotations

from dataclasses import replace

import pytest
from builders import ENGINE, scrape, snapshot

from kvwatch.classifier.engine import EngineClassifier
from kvwatch.classifier.target import TargetClassifier
from kvwatch.config.policy import KnownConfig, Policy, Thresholds, Windows
from kvwatch.model import Cause, EngineConfig, EngineId, FailureReason, ScrapeFailure, State

BUSY = {"running": 3.0, "kv_usage": 0.3}


def classifier(interval=5.0):
    return TargetClassifier(Policy(), interval=interval)


def working(at, **fields):
    """A healthy engine: tokens come out."""
    return snapshot(at, generation_tokens=100.0 * at, **(BUSY | fields))


def verdicts(assessments):
    return [(a.verdict.engine and a.verdict.engine.engine, a.verdict.state, a.verdict.cause) for a in assessments]


def feed(judge, *scrapes):
    """What was said after the last of them."""
    said = ()
    for one in scrapes:
        said = judge.observe(one)
    return said


def test_one_scrape_is_never_evidence_of_health():
    judge = classifier()
    assert verdicts(judge.observe(scrape(working(0)))) == [("0", State.UNKNOWN, Cause.WARMING_UP)]
    assert verdicts(judge.observe(scrape(working(5)))) == [("0", State.UNKNOWN, Cause.WARMING_UP)]
    assert verdicts(judge.observe(scrape(working(10)))) == [("0", State.HEALTHY, Cause.OK)]


@pytest.mark.parametrize(("seen", "cause"), [(7.9, Cause.WARMING_UP), (8.0, Cause.OK)])
def test_an_engine_warms_up_for_eight_seconds(seen, cause):
    assert feed(classifier(), *(scrape(working(t)) for t in (0.0, 4.0, seen)))[0].verdict.cause is cause


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        (FailureReason.CONNECT, Cause.UNREACHABLE),
        (FailureReason.TIMEOUT, Cause.UNREACHABLE),
        (FailureReason.HTTP_STATUS, Cause.UNREACHABLE),
        (FailureReason.PARSE, Cause.UNREACHABLE),
        (FailureReason.NOT_METRICS, Cause.NO_VLLM_METRICS),
        (FailureReason.EMPTY, Cause.NO_VLLM_METRICS),
        (FailureReason.NO_VLLM_METRICS, Cause.NO_VLLM_METRICS),
        (FailureReason.STATS_DISABLED, Cause.STATS_DISABLED),
    ],
)
def test_a_failed_scrape_makes_every_known_engine_unknown_for_its_reason(reason, cause):
    judge = classifier()
    feed(judge, *(scrape(working(t)) for t in (0, 5, 10)))
    assert verdicts(judge.fail(ScrapeFailure(15, reason, "why"))) == [("0", State.UNKNOWN, cause)]


def test_while_no_engine_is_known_a_failure_speaks_of_none():
    judge = classifier()
    first = judge.fail(ScrapeFailure(0, FailureReason.CONNECT, "refused"))
    second = judge.fail(ScrapeFailure(5, FailureReason.CONNECT, "refused"))
    assert verdicts(second) == [(None, State.UNKNOWN, Cause.UNREACHABLE)]
    assert (first[0].verdict.since, second[0].verdict.since) == (0, 0)


def test_faults_of_kvwatch_are_those_of_the_last_poll(monkeypatch):
    judge = classifier()
    feed(judge, scrape(working(0)))
    with monkeypatch.context() as broken:
        broken.setattr(EngineClassifier, "observe", lambda *_args, **_fields: {}["missing"])
        said = judge.observe(scrape(working(5)))
    assert said[0].verdict.evidence == ("kvwatch failed: KeyError, its log says where",)
    assert [type(fault) for fault in judge.faults] == [KeyError]
    judge.fail(ScrapeFailure(10, FailureReason.CONNECT, "refused"))
    assert judge.faults == ()


def test_a_single_failed_scrape_does_not_cost_what_was_known():
    judge = classifier()
    feed(judge, *(scrape(working(t)) for t in (0, 5, 10)))
    judge.fail(ScrapeFailure(15, FailureReason.TIMEOUT, "slow"))
    assert verdicts(judge.observe(scrape(working(20)))) == [("0", State.HEALTHY, Cause.OK)]


def test_engines_are_judged_each_by_itself_and_never_averaged():
    judge = classifier()
    other = EngineId("demo-8b", "1")

    def both(t):
        starved = snapshot(t, running=9.0, waiting=20.0, kv_usage=0.99, preemptions=2.0 * t, finished=2.0 * t, generation_tokens=50.0 * t)
        return scrape(working(t), replace(starved, engine=other))

    assert verdicts(feed(judge, *(both(t) for t in range(0, 30, 5)))) == [
        ("0", State.HEALTHY, Cause.OK),
        ("1", State.KV_BOUND, Cause.PREEMPTING),
    ]


def test_an_engine_that_leaves_is_stale_then_forgotten_and_starts_anew_when_it_comes_back():
    judge = classifier()
    other = EngineId("demo-8b", "1")
    feed(judge, *(scrape(working(t), replace(working(t), engine=other)) for t in (0, 5, 10)))
    assert verdicts(judge.observe(scrape(working(15)))) == [("0", State.HEALTHY, Cause.OK), ("1", State.UNKNOWN, Cause.STALE)]
    said = feed(judge, *(scrape(working(t)) for t in range(20, 915, 5)))
    assert [engine for engine, _, _ in verdicts(said)] == ["0", "1"]
    said = feed(judge, scrape(working(915)))
    assert [engine for engine, _, _ in verdicts(said)] == ["0"]
    back = judge.observe(scrape(working(920), replace(working(920), engine=other)))
    assert verdicts(back)[1] == ("1", State.UNKNOWN, Cause.WARMING_UP)


def test_a_model_renamed_at_a_restart_leaves_no_ghost():
    judge = classifier()
    feed(judge, *(scrape(working(t), process_start_time=1000.0) for t in (0, 5, 10)))
    renamed = replace(working(15), engine=EngineId("demo-8b-awq", "0"))
    said = judge.observe(scrape(renamed, process_start_time=2000.0))
    assert [a.verdict.engine.model_name for a in said] == ["demo-8b-awq"]


def test_a_restart_is_warming_up_again():
    judge = classifier()
    feed(judge, *(scrape(working(t), process_start_time=1000.0) for t in (0, 5, 10, 15)))
    said = judge.observe(scrape(working(20), process_start_time=2000.0))
    assert verdicts(said) == [("0", State.UNKNOWN, Cause.WARMING_UP)]


def test_the_first_scrape_after_a_long_restart_is_no_evidence_of_health():
    """The counters are counted from zero then, but from a zero that nobody saw."""
    judge = classifier()
    feed(judge, *(scrape(working(t), process_start_time=1000.0) for t in (0, 5, 10, 15)))
    assert verdicts(judge.observe(scrape(working(33), process_start_time=2000.0))) == [("0", State.UNKNOWN, Cause.WARMING_UP)]


def test_sleep_mode_is_not_health():
    said = feed(classifier(), *(scrape(snapshot(t, asleep=True)) for t in (0, 5, 10, 15)))
    assert verdicts(said) == [("0", State.UNKNOWN, Cause.ASLEEP)]


def test_counters_of_two_processes_that_answer_in_turn_are_ambiguous():
    turns = (scrape(snapshot(t, generation_tokens=1000.0 + t if t % 10 else 9000.0 + t, **BUSY)) for t in range(0, 60, 5))
    assert verdicts(feed(classifier(), *turns))[0][1] is State.UNKNOWN


def test_gauges_that_froze_when_all_clients_left_are_stale_and_not_a_stall():
    judge = classifier()
    frozen = {"running": 9.0, "waiting": 7.0, "kv_usage": 0.6, "generation_tokens": 500.0}
    feed(judge, *(scrape(snapshot(t, **(frozen | {"generation_tokens": 50.0 * t})), http_requests=100.0) for t in (0, 5, 10)))
    said = feed(judge, *(scrape(snapshot(t, **frozen), http_requests=124.0) for t in (15, 20, 25)))
    assert verdicts(said) == [("0", State.UNKNOWN, Cause.STALE)]


@pytest.mark.parametrize("left_at", [15, 20, 60])
def test_clients_that_give_up_on_an_engine_that_was_silent_before_do_not_explain_its_silence(left_at):
    judge = classifier()
    frozen = {"running": 9.0, "waiting": 7.0, "kv_usage": 0.6, "generation_tokens": 500.0}
    feed(judge, *(scrape(snapshot(t, **(frozen | {"generation_tokens": 50.0 * t})), http_requests=100.0) for t in (0, 5, 10)))
    for t in range(15, 300, 5):
        said = judge.observe(scrape(snapshot(t, **frozen), http_requests=116.0 if t > left_at else 100.0))
        assert t < 25 or verdicts(said) == [("0", State.COMPUTE_BOUND, Cause.STALLED)]


def test_far_more_clients_than_were_there_that_leave_between_two_polls_are_evidence_of_a_stall():
    """16 are there. Those, or a few more that came in between, may leave at once; twice as many are too many for that, and 15 not all."""
    for left, cause in (
        (15.0, Cause.STALLED),
        (16.0, Cause.STALE),
        (24.0, Cause.STALE),
        (31.0, Cause.STALE),
        (32.0, Cause.STALLED),
        (60.0, Cause.STALLED),
    ):
        judge = classifier()
        frozen = {"running": 9.0, "waiting": 7.0, "kv_usage": 0.6, "generation_tokens": 500.0}
        feed(judge, *(scrape(snapshot(t, **(frozen | {"generation_tokens": 50.0 * t})), http_requests=100.0) for t in (0, 5, 10)))
        said = feed(judge, *(scrape(snapshot(t, **frozen), http_requests=100.0 + left) for t in (15, 20, 25, 30)))
        assert verdicts(said)[0][2] is cause


@pytest.mark.parametrize(("silent", "cause"), [(2.9, Cause.STALE), (3.0, Cause.STALLED)])
def test_clients_that_still_wait_after_three_silent_seconds_are_no_part_of_a_mass_abort(silent, cause):
    judge = classifier()
    frozen = {"running": 9.0, "waiting": 7.0, "kv_usage": 0.6, "generation_tokens": 500.0}
    feed(judge, *(scrape(snapshot(t, **(frozen | {"generation_tokens": 50.0 * t})), http_requests=100.0) for t in (0, 5, 10)))
    judge.observe(scrape(snapshot(10.0 + silent, **frozen), http_requests=100.0))
    said = feed(judge, *(scrape(snapshot(t, **frozen), http_requests=116.0) for t in (15, 20, 25, 30)))
    assert verdicts(said)[0][2] is cause


def test_clients_that_came_later_and_left_too_are_evidence_of_a_stall():
    """Had the engine lived it would have stepped for them: 16 were there, 60 went away."""
    judge = classifier()
    frozen = {"running": 9.0, "waiting": 7.0, "kv_usage": 0.6, "generation_tokens": 500.0}
    said = feed(judge, *(scrape(snapshot(t, **frozen), http_requests=100.0 + 3 * t) for t in (0, 5, 10, 15, 20)))
    assert verdicts(said) == [("0", State.COMPUTE_BOUND, Cause.STALLED)]


def test_the_same_gauges_with_clients_still_waiting_are_a_stall():
    judge = classifier()
    frozen = {"running": 9.0, "waiting": 7.0, "kv_usage": 0.6, "generation_tokens": 500.0}
    said = feed(judge, *(scrape(snapshot(t, **frozen), http_requests=100.0) for t in range(0, 20, 5)))
    assert verdicts(said) == [("0", State.COMPUTE_BOUND, Cause.STALLED)]


def test_another_policy_judges_from_the_next_scrape_on_with_what_is_remembered():
    judge = classifier()
    feed(judge, *(scrape(working(t)) for t in range(0, 305, 5)))
    judge.reconfigure(Policy(window=Windows(slow=240.0), thresholds=Thresholds(kv_watermark=0.2)), KnownConfig(max_num_seqs=7))
    said = judge.observe(scrape(working(305)))[0]
    assert (said.verdict.cause, said.signals.running_ceiling, said.signals.slow.seconds) == (Cause.KV_HIGH, 7, 125)
    said = feed(judge, *(scrape(working(t)) for t in range(310, 600, 5)))[0]
    assert said.signals.slow.seconds == 250


def test_time_in_each_state_and_changes_are_accounted_for():
    judge = classifier()
    feed(judge, *(scrape(working(t)) for t in (0, 5, 10, 15, 20)))
    said = judge.fail(ScrapeFailure(25, FailureReason.CONNECT, "refused"))[0]
    assert said.state_seconds == {State.UNKNOWN: 10.0, State.HEALTHY: 15.0, State.KV_BOUND: 0.0, State.COMPUTE_BOUND: 0.0}
    assert said.transitions == 2


def test_the_process_uses_a_core_only_once_the_window_is_covered():
    judge = classifier()
    said = feed(judge, *(scrape(working(t), process_cpu_seconds=0.95 * t) for t in range(0, 35, 5)))
    assert said[0].signals.process_cpu_ratio == pytest.approx(0.95)
    assert verdicts(said) == [("0", State.HEALTHY, Cause.OK)]
    assert verdicts(judge.observe(scrape(working(35), process_cpu_seconds=0.95 * 35))) == [("0", State.COMPUTE_BOUND, Cause.FRONTEND)]


def test_the_engine_of_the_verdict_is_that_of_the_snapshot():
    assert classifier().observe(scrape(working(0)))[0].verdict.engine == ENGINE


@pytest.mark.parametrize(
    ("engines", "tokens"),
    [
        pytest.param([("demo-8b", "0"), ("demo-8b", "1")], 2528, id="two ranks of one server share the sum of blocks"),
        pytest.param([("demo-8b", "0"), ("other-8b", "0")], 5088, id="two servers of different models"),
        pytest.param([("demo-8b", "0@r-1"), ("demo-8b", "0@r-2")], 5088, id="two replicas on one page"),
    ],
)
def test_blocks_are_shared_only_by_the_ranks_of_one_server(engines, tokens):
    config = EngineConfig(num_gpu_blocks=160, block_size=32)
    pages = (scrape(*(replace(working(t), engine=EngineId(*engine), config=config) for engine in engines)) for t in (0, 5, 10))
    assert {one.signals.capacity_tokens for one in feed(classifier(), *pages)} == {tokens}


@pytest.mark.parametrize(
    ("ranks", "blocks", "tokens"),
    [
        pytest.param([2, 2, 1, 1], 320, 2544, id="one of two is gone: the survivor's pool stays half of the sum"),
        pytest.param([4, 3, 2], 640, 2544, id="one after the other"),
        pytest.param([1, 2], 320, 2544, id="they come up one by one"),
    ],
)
def test_a_lost_rank_does_not_give_its_blocks_to_the_others(ranks, blocks, tokens):
    judge = classifier()
    config = EngineConfig(num_gpu_blocks=blocks, block_size=16)
    for number, count in enumerate([*ranks, *[ranks[-1]] * 300]):
        at = 5.0 * number
        engines = [EngineId("demo-8b", str(rank)) for rank in range(count)]
        said = judge.observe(scrape(*(replace(working(at), engine=engine, config=config) for engine in engines)))
    assert said[0].signals.capacity_tokens == tokens
    assert said[0].verdict.engine.engine == "0"


def test_engines_are_told_in_order_whatever_the_page_says_first():
    judge = classifier()
    page = [replace(working(0), engine=EngineId("demo-8b", name)) for name in ("2", "0", "1")]
    assert [a.verdict.engine.engine for a in judge.observe(scrape(*page))] == ["0", "1", "2"]


def test_two_lost_polls_of_a_minute_are_no_gap():
    judge = classifier(interval=60.0)
    said = feed(judge, *(scrape(working(60.0 * t)) for t in (0, 1, 4)))
    assert verdicts(said) == [("0", State.HEALTHY, Cause.OK)]


@pytest.mark.parametrize(("interval", "seconds"), [(1.0, 30.0), (10.0, 30.0), (15.0, 30.0), (20.0, 40.0), (60.0, 120.0)])
def test_the_fast_window_reaches_over_two_polls_and_keeps_all_of_them(interval, seconds):
    said = feed(classifier(interval), *(scrape(working(interval * n)) for n in range(int(300 / interval) + 1)))
    fast = said[0].signals.fast
    assert (fast.seconds, fast.samples) == (seconds, seconds / interval + 1)


@pytest.mark.parametrize(("interval", "lost", "cause"), [(5.0, 23, Cause.OK), (5.0, 24, Cause.WARMING_UP), (60.0, 3, Cause.OK)])
def test_a_gap_is_longer_than_the_slow_window_and_four_polls(interval, lost, cause):
    """Lost polls in a row: 120 s between two answers belong together, 125 s do not; where polls are a minute apart, 240 s do."""
    judge = classifier(interval)
    feed(judge, *(scrape(working(interval * n)) for n in range(4)))
    assert judge.observe(scrape(working(interval * (4 + lost))))[0].verdict.cause is cause


def test_counters_that_began_anew_three_times_in_two_minutes_are_those_of_several_processes():
    judge, said = classifier(), []
    for i, tokens in enumerate((900.0, 910.0, 920.0, 5.0, 930.0, 10.0, 940.0, 15.0, 950.0)):
        said += [one.verdict.cause for one in judge.observe(scrape(snapshot(5.0 * i, generation_tokens=tokens, **BUSY)))]
    assert said[-1] is Cause.AMBIGUOUS
    assert Cause.AMBIGUOUS not in said[:7]
    assert said[7] is Cause.AMBIGUOUS


@pytest.mark.parametrize(("third", "cause"), [(115.0, Cause.AMBIGUOUS), (120.0, Cause.WARMING_UP)])
def test_three_restarts_are_several_processes_only_within_two_minutes(third, cause):
    judge, tokens, said = classifier(), 1000.0, []
    for at in range(0, int(third) + 6, 5):
        tokens = 0.0 if at in (5, 60, third + 5) else tokens + 100.0
        said += judge.observe(scrape(snapshot(float(at), generation_tokens=tokens, **BUSY)))
    assert said[-1].verdict.cause is cause


@pytest.mark.parametrize(("start", "cause"), [(0.0, Cause.COMPUTE), (1000.0, Cause.OK)])
def test_what_was_achieved_goes_with_the_process(start, cause):
    """320 tokens a second, and then 10; where another process answers since, those were not its own."""
    judge, tokens, said = classifier(), 0.0, ()
    for i in range(60):
        tokens = tokens + (1600.0 if i < 30 else 50.0) if i != 30 or not start else 50.0
        started = 1e9 + (5.0 * 30 - 1.0 if start and i >= 30 else -500.0)
        fields = {"running": 8.0, "kv_usage": 0.3, "generation_tokens": tokens, "steps": tokens / 8}
        said = judge.observe(scrape(snapshot(5.0 * i, **fields), unix=1e9 + 5.0 * i, process_start_time=started))
    assert verdicts(said)[0][2] is cause


@pytest.mark.parametrize(("cores", "cause"), [(0.9, Cause.FRONTEND), (0.89, Cause.OK), (None, Cause.OK)])
def test_a_frontend_that_uses_a_whole_core_over_the_fast_window(cores, cause):
    judge, said = classifier(), ()
    for i in range(12):
        seconds = None if cores is None else 100.0 + 5.0 * i * cores
        said = judge.observe(scrape(working(5.0 * i), process_cpu_seconds=seconds))
    assert verdicts(said)[0][2] is cause


def test_processor_time_is_counted_over_the_fast_window_only():
    """Two whole cores for a minute, and none since: after half a minute nothing is left of it."""
    judge, used, found = classifier(), 100.0, []
    for i in range(24):
        used += 10.0 if i < 12 else 0.0
        found += [one.signals for one in judge.observe(scrape(working(5.0 * i), process_cpu_seconds=used))]
    ratios = [None if one is None else one.process_cpu_ratio for one in found]
    assert ratios[:6] == [None] * 6
    assert ratios[6:12] == [pytest.approx(2.0)] * 6
    assert ratios[14] == pytest.approx(1.0)
    assert ratios[17:] == [pytest.approx(0.0)] * 7


@pytest.mark.parametrize(("last", "ratio"), [(27.5, 0.5), (27.4, None)])
def test_the_fast_window_is_covered_half_a_poll_before_its_end(last, ratio):
    pages = (scrape(working(t), process_cpu_seconds=0.5 * t) for t in (0.0, 10.0, 20.0, last))
    assert feed(classifier(), *pages)[0].signals.process_cpu_ratio == ratio


@pytest.mark.parametrize(("interval", "covered"), [(1.0, 30), (15.0, 2), (20.0, 2), (60.0, 2)])
def test_processor_time_is_known_however_far_apart_the_polls_are(interval, covered):
    """After half a minute, or two polls."""
    judge = classifier(interval)
    said = [judge.observe(scrape(working(interval * n), process_cpu_seconds=0.5 * interval * n))[0].signals for n in range(40)]
    known = [None if one is None else one.process_cpu_ratio for one in said]
    assert known == [None] * covered + [0.5] * (40 - covered)


def test_processor_time_of_a_new_process_is_counted_anew():
    judge, found = classifier(), []
    for i in range(14):
        found += judge.observe(scrape(working(5.0 * i), process_cpu_seconds=(1000.0 if i < 7 else 0.0) + 5.0 * i))
    assert found[6].signals.process_cpu_ratio == pytest.approx(1.0)
    assert [one.signals.process_cpu_ratio for one in found[7:13]] == [None] * 6
    assert found[13].signals.process_cpu_ratio == pytest.approx(1.0)
