from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvwatch.simulator.config import CPU_25M, Names, ServerConfig
from kvwatch.simulator.counters import Distribution, one_two_five
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.load import ClosedLoop, Fixed
from kvwatch.simulator.simulation import Simulation

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
STARVED = ServerConfig(num_gpu_blocks=160, block_size=32, max_model_len=4096)


def simulation(**flags) -> Simulation:
    one = Simulation(replace(STARVED, **flags), ClosedLoop(32, Fixed(300), Fixed(200)), profile=CPU_25M, seed=1, start_unix=1.75e9)
    one.advance(60.0)
    return one


def recorded_body(name: str, line: int = 60) -> str:
    with lzma.open(RECORDINGS / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        return json.loads(file.readlines()[line])["body"]


def shape(body: str) -> list[str]:
    """Every line without its value, and of the configuration's labels only the names."""
    lines = []
    for line in body.splitlines():
        series = line if line.startswith("#") else line.rsplit(" ", 1)[0]
        if series.startswith("vllm:cache_config_info{"):
            series = " ".join(part.split("=")[0] for part in series.split(","))
        lines.append(series)
    return lines


def samples(body: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def value(body: str, name: str, **labels: str) -> float:
    return samples(body)[name, frozenset(labels.items())]


def test_text_is_line_for_line_what_a_real_server_exports():
    assert shape(expose(simulation())) == shape(recorded_body("kv_storm"))


def test_two_engines_have_the_series_of_a_real_server_with_two():
    ours, theirs = shape(expose(simulation(data_parallel_size=2))), shape(recorded_body("dp2_one_starved"))
    assert sorted(ours) == sorted(theirs)
    assert [line for line in ours if line.startswith("# TYPE")] == [line for line in theirs if line.startswith("# TYPE")]


def test_configuration_says_what_the_recorded_server_said():
    theirs = next(line for line in recorded_body("dp2_one_starved").splitlines() if line.startswith("vllm:cache_config_info{"))
    ours = next(line for line in expose(simulation(data_parallel_size=2)).splitlines() if line.startswith("vllm:cache_config_info{"))
    different = {one.split("=")[0] for one, two in zip(ours.split(","), theirs.split(","), strict=True) if one != two}
    assert different == {"kv_cache_memory_bytes"}, "the recorded server was told the bytes, this one the blocks"


def test_without_stats_only_the_process_and_its_web_framework_remain():
    names = {name for name, _ in samples(expose(simulation(disable_log_stats=True)))}
    assert not [name for name in names if name.startswith("vllm")]
    assert {"process_start_time_seconds", "http_requests_total"} <= names


def test_numbers_are_those_of_the_simulation():
    one = simulation()
    body = expose(one)
    labels = {"engine": "0", "model_name": "demo-8b"}
    seen = one.engines[0].counters
    assert value(body, "vllm:num_requests_running", **labels) == seen.gauges.running
    assert value(body, "vllm:num_requests_waiting", **labels) == seen.gauges.waiting
    assert value(body, "vllm:num_requests_waiting_by_reason", reason="capacity", **labels) == seen.gauges.waiting
    assert value(body, "vllm:kv_cache_usage_perc", **labels) == seen.gauges.usage
    assert value(body, "vllm:num_preemptions_total", **labels) == seen.preemptions > 0
    assert value(body, "vllm:request_success_total", finished_reason="length", **labels) == seen.finished > 0
    assert value(body, "vllm:iteration_tokens_total_sum", **labels) == seen.step_tokens.sum
    assert value(body, "vllm:prompt_tokens_by_source_total", source="local_compute", **labels) == seen.prompt_tokens
    assert value(body, "process_start_time_seconds") == 1.75e9
    assert value(body, "http_requests_total", handler="/v1/completions", method="POST", status="2xx") == seen.finished


@pytest.mark.parametrize("names", list(Names))
def test_every_vocabulary_parses_and_has_whole_histograms(names):
    body = expose(simulation(names=names))
    found = samples(body)
    infinite = [(name, labels) for name, labels in found if name.endswith("_bucket") and ("le", "+Inf") in labels]
    assert infinite
    for name, labels in infinite:
        rest = labels - {("le", "+Inf")}
        assert found[name, labels] == found[name.removesuffix("_bucket") + "_count", rest]
        buckets = {
            float(dict(other)["le"]): count
            for (key, other), count in found.items()
            if key == name and other - {("le", dict(other)["le"])} == rest
        }
        assert list(buckets) == sorted(buckets)
        assert list(buckets.values()) == sorted(buckets.values()), f"{name} is cumulative"


def test_v0_has_the_names_of_its_time():
    body = expose(simulation(names=Names.V0))
    names = {name for name, _ in samples(body)}
    assert {"vllm:gpu_cache_usage_perc", "vllm:num_requests_swapped", "vllm:cpu_cache_usage_perc", "vllm:num_preemptions_total"} <= names
    assert not names & {"vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds_count", "http_requests_total"}
    assert not [name for name in names if name.endswith("_created")]
    assert 'engine="' not in body
    assert 'num_gpu_blocks="160"' in body
    edges = {dict(labels)["le"] for name, labels in samples(body) if name == "vllm:e2e_request_latency_seconds_bucket"}
    assert edges == {"0.3", "0.5", "0.8", "1.0", "1.5", "2.0", "2.5", "5.0", "10.0", "15.0", "20.0", "30.0", "40.0", "50.0", "60.0", "+Inf"}


def test_early_v1_has_the_names_of_its_time():
    body = expose(simulation(names=Names.V1_EARLY))
    names = {name for name, _ in samples(body)}
    assert {"vllm:gpu_cache_usage_perc", "vllm:time_per_output_token_seconds_count", "vllm:gpu_prefix_cache_queries_total"} <= names
    assert not names & {"vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds_count", "vllm:num_requests_waiting_by_reason"}
    assert 'num_gpu_blocks="None"' in body
    assert "kv_cache_size_tokens" not in body


def test_hostile_model_name_is_escaped():
    body = expose(simulation(model_name='a"b\\c\nd<script>'))
    assert ("vllm:num_requests_running", frozenset({("engine", "0"), ("model_name", 'a"b\\c\nd<script>')})) in samples(body)


@pytest.mark.parametrize(
    ("highest", "edges"),
    [
        pytest.param(4096, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000), id="as recorded"),
        pytest.param(5, (1, 2, 5), id="edge itself included"),
        pytest.param(1, (1,), id="one"),
    ],
)
def test_length_edges_follow_one_two_five(highest, edges):
    assert one_two_five(highest) == edges


def test_value_on_an_edge_is_in_its_bucket():
    distribution = Distribution((1.0, 2.0))
    for observed in (1.0, 1.5, 2.0, 2.5):
        distribution.observe(observed)
    assert distribution.counts == [1, 2, 1]
    assert (distribution.count, distribution.sum) == (4, 7.0)
