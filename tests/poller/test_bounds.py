"""What a target may not make of kvwatch's memory, time and arithmetic."""

from __future__ import annotations

import sys
import time

import pytest

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.errors import ScrapeError
from kvwatch.model import MOST_ENGINES, FailureReason
from kvwatch.poller import label_memory
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.vllm import parse_scrape

FAMILIES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "generation_tokens_total", "num_preemptions_total")


def page(engines, *, model="demo-8b", first=0, families=FAMILIES, value="1"):
    return "".join(
        f'vllm:{family}{{engine="{engine}",model_name="{model}"}} {value}\n'
        for engine in range(first, first + engines)
        for family in families
    ).encode()


@pytest.mark.parametrize("absurd", ["1e308", "1e16", "-1e308", "-1", "NaN", "+Inf", "9" * 400, "5e-324", "1e-308", "1e-10"])
@pytest.mark.parametrize("family", FAMILIES[:2] + FAMILIES[3:])
def test_what_cannot_be_a_count_is_absent(family, absurd):
    rest = [other for other in FAMILIES if other != family]
    (snapshot,) = parse_scrape(page(1, families=rest) + page(1, families=[family], value=absurd), 1.0).snapshots
    read = {
        "num_requests_running": snapshot.running,
        "num_requests_waiting": snapshot.waiting,
        "generation_tokens_total": snapshot.generation_tokens,
        "num_preemptions_total": snapshot.preemptions,
    }
    assert [name for name, value in read.items() if value is None] == [family]


@pytest.mark.parametrize(("share", "read"), [("5e-324", 0.0), ("1e-308", 0.0), ("-1e-7", 0.0), ("0.5", 0.5), ("1.5", 1.0), ("1e308", 1.0)])
def test_a_share_of_next_to_nothing_is_none_of_it(share, read):
    (snapshot,) = parse_scrape(page(1, families=FAMILIES[:2]) + page(1, families=FAMILIES[2:3], value=share), 1.0).snapshots
    assert snapshot.kv_usage == read


@pytest.mark.parametrize("field", ["num_gpu_blocks", "block_size", "kv_cache_size_tokens", "kv_cache_max_concurrency"])
@pytest.mark.parametrize("absurd", ["1e308", "1e-308", "9" * 400, "-1", "nan", "0"])
def test_configuration_beyond_all_measure_breaks_nothing(field, absurd):
    sound = {"num_gpu_blocks": "100", "block_size": "16", "kv_cache_size_tokens": "1600", "kv_cache_max_concurrency": "2"}
    labels = ",".join(f'{name}="{value}"' for name, value in (sound | {field: absurd}).items())
    scrape = parse_scrape(page(1) + f"vllm:cache_config_info{{{labels}}} 1\n".encode(), 1.0)
    config = scrape.snapshots[0].config
    assert all(value is None or value <= 1e15 for value in (config.num_gpu_blocks, config.kv_cache_size_tokens, config.max_model_len))


def test_the_first_engines_are_judged_and_the_others_counted():
    scrape = parse_scrape(page(MOST_ENGINES + 88), 1.0)
    assert (len(scrape.snapshots), scrape.engines_dropped) == (MOST_ENGINES, 88)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(page(MOST_ENGINES), None, id="as many as are judged"),
        pytest.param(page(MOST_ENGINES + 1), "overflow: 1 more engine of this target not judged", id="one more"),
        pytest.param(page(MOST_ENGINES + 88), "overflow: 88 more engines of this target not judged", id="many more"),
        pytest.param(page(1) + page(1, model="x" * 2000), "overflow: 1 more engine of this target not judged", id="an endless name"),
    ],
)
def test_every_verdict_says_how_many_engines_have_none(body, said):
    judge = judge_for(Settings())
    evidence = [[one.verdict.evidence for one in judge.scraped(parse_scrape(body, 5.0 * poll)).assessments] for poll in range(4)]
    told = [[line.partition(" (")[0] for line in lines if line.startswith("overflow")] for poll in evidence for lines in poll]
    assert told == [[] if said is None else [said]] * len(told)
    assert all(len(lines) > len(found) for lines, found in zip((lines for poll in evidence for lines in poll), told, strict=True))


def test_the_overflow_is_said_no_longer_than_it_lasts():
    judge = judge_for(Settings())
    told = [
        {line for one in judge.scraped(parse_scrape(body, 5.0 * poll)).assessments for line in one.verdict.evidence if "overflow" in line}
        for poll, body in enumerate((page(MOST_ENGINES + 1), page(MOST_ENGINES)))
    ]
    assert [len(lines) for lines in told] == [1, 0]


def test_eight_thousand_engines_are_cut_within_a_second_of_processor_time():
    body = page(8000)
    began = time.process_time()
    assert parse_scrape(body, 1.0).engines_dropped == 8000 - MOST_ENGINES
    assert time.process_time() - began < 1.0


def test_a_page_with_more_series_than_can_be_read_in_time_is_refused():
    with pytest.raises(ScrapeError, match="more than 40000 series") as caught:
        parse_scrape(page(40_001, families=["num_requests_running"]), 1.0)
    assert caught.value.reason is FailureReason.TOO_LARGE


def test_an_engine_with_an_endless_name_is_left_out():
    scrape = parse_scrape(page(1) + page(1, model="x" * 2000), 1.0)
    assert ([one.engine.model_name for one in scrape.snapshots], scrape.engines_dropped) == (["demo-8b"], 1)


def test_a_page_of_nothing_but_endless_names_is_refused():
    with pytest.raises(ScrapeError, match="no engine's name is shorter"):
        parse_scrape(page(1, model="x" * 2000), 1.0)


def remembered(memory):
    return sum(sys.getsizeof(text) for meanings in (memory._addresses, memory._addresses._before) for text in meanings)


def test_new_names_at_every_scrape_do_not_add_up():
    memory, sizes = LabelMemory(), []
    for scrape in range(200):
        parse_scrape(page(26, model=f"{scrape:0500}"), float(scrape), memory=memory)
        sizes.append(remembered(memory))
    assert max(sizes[100:]) <= max(sizes[:100])
    assert max(sizes) < 1_000_000


def test_what_comes_back_at_every_scrape_stays_remembered(monkeypatch):
    memory = LabelMemory()
    for scrape in range(50):  # beside it, something new each time
        parse_scrape(page(5) + page(10, model=f"new {scrape}"), float(scrape), memory=memory)
    read = []
    parse = vars(label_memory)["parse_labels"]
    monkeypatch.setattr(label_memory, "parse_labels", lambda text: read.append(text) or parse(text))
    parse_scrape(page(5), 50.0, memory=memory)
    assert read == []


def test_engines_that_come_and_go_are_never_more_than_the_bound_together():
    judge = judge_for(Settings())
    said = [len(judge.scraped(parse_scrape(page(100, first=100 * scrape), 1.0 * scrape)).assessments) for scrape in range(40)]
    assert max(said) <= MOST_ENGINES


def test_judging_costs_what_the_number_of_engines_says():
    """Processor time of 500 engines against 50: ten times as much, and a hundred times if it were quadratic."""

    def cost(engines):
        judge = judge_for(Settings())
        scrapes = [parse_scrape(page(engines, value=str(at)), 5.0 * at) for at in range(8)]
        for scrape in scrapes[:-1]:
            judge.scraped(scrape)
        return min(_processor_seconds(lambda: judge.scraped(scrapes[-1])) for _ in range(5))

    assert cost(500) < 35 * cost(50)


def _processor_seconds(call):
    began = time.process_time()
    call()
    return time.process_time() - began
