"""What bytes are refused, with which reason, and what survives in the bytes that are not."""

from __future__ import annotations

import json
import lzma
import math
import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvwatch.errors import ScrapeError
from kvwatch.model import FailureReason
from kvwatch.poller import exposition
from kvwatch.poller.exposition import decode, parse_labels, parse_value, select
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.vllm import parse_scrape

LABELS = '{engine="0",model_name="demo-8b"}'
RUNNING = f"vllm:num_requests_running{LABELS}"


def read(*lines):
    return parse_scrape("".join(f"{line}\n" for line in lines).encode(), 1.0)


def one(*lines):
    (snapshot,) = read(*lines).snapshots
    return snapshot


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"", FailureReason.EMPTY, id="no-bytes"),
        pytest.param(b" \r\n\t\n", FailureReason.EMPTY, id="only-whitespace"),
        pytest.param(b"<!DOCTYPE html><html><body>Log in</body></html>", FailureReason.NOT_METRICS, id="html"),
        pytest.param(b'{"detail":"Not Found"}', FailureReason.NOT_METRICS, id="json-object"),
        pytest.param(b'[{"iter": 1}]\n', FailureReason.NOT_METRICS, id="json-list"),
        pytest.param(b"Service is warming up\n", FailureReason.NOT_METRICS, id="prose"),
        pytest.param(b"OK", FailureReason.NOT_METRICS, id="a-word"),
        pytest.param(f"{RUNNING} 1\n".encode("utf-16"), FailureReason.ENCODING, id="utf-16"),
        pytest.param(b'vllm:num_requests_running{model_name="\xe9"} 1\n', FailureReason.ENCODING, id="latin-1"),
        pytest.param(f"{RUNNING} 12345"[:-2].encode(), FailureReason.PARSE, id="cut-off-within-a-number"),
        pytest.param(f'{RUNNING} 1\nvllm:num_requests_waiting{{engine="0'.encode(), FailureReason.PARSE, id="cut-off-within-labels"),
        pytest.param(f"{RUNNING} 1\n# HELP vllm:num_req".encode(), FailureReason.PARSE, id="cut-off-within-a-comment"),
        pytest.param(f"{RUNNING}\n{RUNNING} 1\n".encode(), FailureReason.PARSE, id="no-value"),
        pytest.param(f"{RUNNING} many\n{RUNNING} 1\n".encode(), FailureReason.PARSE, id="a-word-for-a-value"),
        pytest.param(f"{RUNNING} 1_000\n{RUNNING} 1\n".encode(), FailureReason.PARSE, id="underscores"),
        pytest.param(f"{RUNNING} 0x10\n{RUNNING} 1\n".encode(), FailureReason.PARSE, id="hexadecimal"),
        pytest.param(f"{RUNNING} \u0661\n{RUNNING} 1\n".encode(), FailureReason.PARSE, id="digits-of-another-script"),
        pytest.param(b'vllm:num_requests_running{model_name="demo} 1\nok 1\n', FailureReason.PARSE, id="quote-not-closed"),
        pytest.param(b'vllm:num_requests_running{a="1",a="2"} 1\n', FailureReason.PARSE, id="label-twice"),
        pytest.param(b'vllm:num_requests_running{a-b="1"} 1\n', FailureReason.PARSE, id="label-name-with-a-dash"),
        pytest.param(b"vllm:num_requests_running{a=1} 1\n", FailureReason.PARSE, id="label-value-without-quotes"),
        pytest.param(f"{RUNNING} 1 2 3\n{RUNNING} 1\n".encode(), FailureReason.PARSE, id="too-many-numbers"),
        pytest.param(f'{RUNNING} 1\nvllm:num_requests_running{{a="{"x" * 20_000}"}} 1\n'.encode(), FailureReason.PARSE, id="endless-label"),
        pytest.param(b"node_load1 0.5\nprocess_cpu_seconds_total 4\n", FailureReason.NO_VLLM_METRICS, id="another-exporter"),
        pytest.param(b"vllm_omni:num_requests_running 1\n", FailureReason.NO_VLLM_METRICS, id="another-product-with-vllm-in-its-name"),
        pytest.param(b"mvllm:num_requests_running 1\n", FailureReason.NO_VLLM_METRICS, id="another-word-that-ends-in-vllm"),
    ],
)
def test_a_body_without_usable_samples_is_refused_with_its_reason(body, reason):
    with pytest.raises(ScrapeError) as caught:
        parse_scrape(body, 1.0)

    assert caught.value.reason is reason
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_what_nobody_asked_for_may_be_malformed():
    assert one(f"{RUNNING} 3", 'other{a="1 2', "other 0x1", "???").running == 3


def test_unknown_labels_and_blank_lines_do_no_harm():
    assert one("", f"{RUNNING} 3", "", 'vllm:num_requests_waiting{engine="0",model_name="demo-8b",zone="eu"} 4').waiting == 4


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(f"{RUNNING} 3", id="plain"),
        pytest.param(f"{RUNNING} 3.0e+00", id="exponent"),
        pytest.param(f"{RUNNING} 3 1795963211000", id="timestamp"),
        pytest.param(f"{RUNNING} 3 -1795963211000", id="timestamp-before-1970"),
        pytest.param(f"{RUNNING}  3", id="two-spaces"),
        pytest.param(f"{RUNNING}\t3", id="tab"),
        pytest.param(f"  {RUNNING} 3 ", id="spaces-around"),
        pytest.param(f"{RUNNING} 3\r", id="carriage-return"),
        pytest.param(f'{RUNNING} 3 # {{a="b"}} 1', id="exemplar"),
        pytest.param(f'{RUNNING} 3 # {{a="}} 9"}} 1 1795963211', id="exemplar-with-a-brace-and-a-time"),
        pytest.param('vllm:num_requests_running{engine="0",model_name="demo-8b",} 3', id="trailing-comma"),
        pytest.param('vllm:num_requests_running{ engine = "0" , model_name = "demo-8b" } 3', id="spaces-in-labels"),
    ],
)
def test_a_sample_may_be_written_in_many_ways(line):
    snapshot = one(line)

    assert (snapshot.engine.model_name, snapshot.engine.engine, snapshot.running) == ("demo-8b", "0", 3)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        pytest.param("0", 0.0, id="zero"),
        pytest.param("-2.5", -2.5, id="negative"),
        pytest.param("1.7959632110690255e+09", 1.7959632110690255e9, id="exponent"),
        pytest.param("+Inf", math.inf, id="plus-infinity"),
        pytest.param("-Inf", -math.inf, id="minus-infinity"),
    ],
)
def test_a_value_is_read_as_the_format_says(written, value):
    assert parse_value(written) == value
    assert list(select(f"a {written}\n", {"a": "A"}.get)) == [("A", "", value)]


def test_nan_is_a_value_of_the_format():
    assert math.isnan(parse_value("NaN"))


def escaped(value):
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def test_every_label_value_survives_whatever_it_is_made_of():
    dice = random.Random(1)  # noqa: S311 - reproducible, not secret
    for _ in range(500):
        value = "".join(dice.choices('a"\\,=} {\n#\tn1é\u2028', k=dice.randrange(12)))
        number = dice.choice(["7", "7 1795963211000", '7 # {a="b"} 1'])
        line = f'x{{before="1",value="{escaped(value)}",after="2"}} {number}'

        ((_, labels, read_value),) = select(f"{line}\n", {"x": "x"}.get)

        assert parse_labels(labels) == {"before": "1", "value": value, "after": "2"}, line
        assert read_value == 7


def test_a_model_name_with_quotes_commas_and_newlines_is_kept():
    name = 'a "b", c\\d\n{e} 1'

    assert one(f'vllm:num_requests_running{{model_name="{escaped(name)}"}} 3').engine.model_name == name


def test_the_last_line_of_openmetrics_needs_no_newline():
    assert decode(b"a 1\n# EOF") == "a 1\n# EOF"


def test_the_same_labels_are_parsed_once(monkeypatch):
    calls = []
    parser = vars(exposition)["text_string_to_metric_families"]

    def counts(text):
        calls.append(text)
        return parser(text)

    monkeypatch.setattr(exposition, "text_string_to_metric_families", counts)
    memory = LabelMemory()
    for value in range(5):
        lines = (f'vllm:{name}{{model_name="parsed once"}} {value}\n' for name in ("num_requests_running", "num_requests_waiting"))
        parse_scrape("".join(lines).encode(), 1.0, memory=memory)

    assert len(calls) == 1


def test_ten_thousand_unknown_families_are_not_parsed(monkeypatch):
    calls = []
    monkeypatch.setattr(exposition, "parse_value", lambda text: calls.append(text) or float(text))
    unknown = [f'# TYPE {prefix}_{i} gauge\n{prefix}_{i}{{a="{i}"}} {i}' for prefix in ("app", "vllm:x") for i in range(10_000)]

    assert one(f"{RUNNING} 3", *unknown).running == 3
    assert calls == ["3"]


def first_body(recording):
    with lzma.open(recording, "rt", encoding="utf-8") as lines:
        next(lines)
        return json.loads(next(lines))["body"]


@pytest.mark.parametrize("name", ["kv_storm", "dp2_one_starved", "storm_mfu"])
def test_a_real_body_is_read_as_the_library_reads_it(repository, name):
    body = first_body(repository / "tests" / "data" / "recordings" / f"{name}.jsonl.xz")
    expected = [(sample.name, sample.labels, sample.value) for family in text_string_to_metric_families(body) for sample in family.samples]

    ours = [(name, parse_labels(labels), value) for name, labels, value in select(body, lambda name: name)]

    assert len(ours) > 400
    assert sorted(ours, key=str) == sorted(expected, key=str)


ROUTER = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{server="http://10.0.0.1:8000"} 12.0
vllm:num_requests_running{server="http://10.0.0.2:8000"} 40.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{server="http://10.0.0.1:8000"} 0.0
vllm:num_requests_waiting{server="http://10.0.0.2:8000"} 90.0
"""


@pytest.mark.parametrize(
    "page", [ROUTER, 'vllm:num_requests_running{endpoint="a"} 1.0\nvllm:healthy_pods_total{endpoint="a"} 1.0\n', "vllm:current_qps 3.0\n"]
)
def test_a_router_is_refused_by_name_and_not_judged_as_an_engine(page):
    with pytest.raises(ScrapeError, match="a router's view of its vLLM servers, not an engine") as refused:
        parse_scrape(page.encode(), 1.0)
    assert refused.value.reason is FailureReason.NO_VLLM_METRICS


HISTOGRAM = """# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 0.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 0.0
vllm:time_to_first_token_seconds_count{model_name="m"} 0.0
"""
FINISHED = 'vllm:request_success_total{finished_reason="stop",model_name="m"} 150.0\n'
PROCESS = 'process_start_time_seconds 1.7e9\npython_info{version="3.12"} 1.0\nhttp_requests_total{handler="/metrics"} 3.0\n'
VLLM_WITHOUT_ENGINE = "vLLM's families are there"


@pytest.mark.parametrize(
    ("page", "reason", "says"),
    [
        pytest.param(FINISHED + HISTOGRAM, "no_vllm_metrics", VLLM_WITHOUT_ENGINE, id="finished-requests-only"),
        pytest.param(HISTOGRAM, "no_vllm_metrics", VLLM_WITHOUT_ENGINE, id="empty-histograms"),
        pytest.param(PROCESS + FINISHED, "no_vllm_metrics", VLLM_WITHOUT_ENGINE, id="front-end-beside-its-process"),
        pytest.param(
            FINISHED + "dynamo_component_uptime_seconds 5\n",
            "no_vllm_metrics",
            VLLM_WITHOUT_ENGINE,
            id="front-end-of-a-distributed-runtime",
        ),
        pytest.param(
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n',
            "no_vllm_metrics",
            VLLM_WITHOUT_ENGINE,
            id="configuration-only",
        ),
        pytest.param(
            'vllm:lora_requests_info{max_lora="4"} 1.0\nvllm:a_family_of_next_year 1.0\n',
            "no_vllm_metrics",
            VLLM_WITHOUT_ENGINE,
            id="families-kvwatch-does-not-read",
        ),
        pytest.param(
            'ray_vllm_request_success_total{model_name="m"} 1.0\n', "no_vllm_metrics", VLLM_WITHOUT_ENGINE, id="ray-without-an-engine"
        ),
        pytest.param(
            "# TYPE vllm:num_requests_running gauge\n" + FINISHED, "no_vllm_metrics", "declared, but no engine", id="no-engine-reported-yet"
        ),
        pytest.param(
            'inference_pool_average_kv_cache_utilization{name="p"} 0.4\n', "no_vllm_metrics", "llm-d's endpoint picker", id="llm-d-picker"
        ),
        pytest.param("llm_d_inference_scheduler_pd_decision_total 4\n", "no_vllm_metrics", "metrics of llm-d", id="llm-d-scheduler"),
        pytest.param("vllm_router_requests_total 4\n", "no_vllm_metrics", "vLLM's router", id="router-of-its-own-names"),
        pytest.param("ray_node_cpu_utilization 4\n", "no_vllm_metrics", "metrics of Ray", id="ray-node-without-vllm"),
        pytest.param("sglang:num_running_reqs 4\n", "no_vllm_metrics", "metrics of SGLang", id="another-engine"),
        pytest.param("node_load1 0.5\n", "no_vllm_metrics", "metrics of node_exporter", id="another-exporter"),
        pytest.param("a 1\nb 1\nc 1\nd 1\n", "no_vllm_metrics", "no family of vLLM among 4: a, b, c, …", id="unknown-exporter"),
        pytest.param("process_cpu_seconds_total 1\n", "no_vllm_metrics", "among 1: process_cpu_seconds_total", id="process-only"),
        pytest.param("vllm_omni:num_requests_running 1\n", "no_vllm_metrics", "no family of vLLM among 1", id="another-product"),
        pytest.param(PROCESS, "stats_disabled", "--disable-log-stats", id="statistics-off"),
        pytest.param("", "empty", "the body is empty", id="empty-page"),
        pytest.param("<html><body>Sign in</body></html>\n", "not_metrics", "HTML or XML", id="login-page"),
    ],
)
def test_a_page_without_an_engine_is_called_what_it_is(page, reason, says):
    with pytest.raises(ScrapeError) as refused:
        parse_scrape(page.encode(), 1.0)
    assert refused.value.reason == reason
    assert says in refused.value.detail


def test_an_engine_that_a_scraper_labelled_with_its_server_is_one():
    page = 'vllm:num_requests_running{model_name="demo-8b",server="a"} 3.0\n'
    assert [one.running for one in parse_scrape(page.encode(), 1.0).snapshots] == [3.0]
