"""``kvwatch plan``: the playbook's arithmetic to the byte, what-ifs, sources, and refusals."""

from __future__ import annotations

import argparse
import io
import json

import pytest
from rich.console import Console

from kvwatch.capacity.architecture import read_model
from kvwatch.commands.outside import Outside
from kvwatch.commands.plan import add_arguments
from kvwatch.errors import ScrapeError, UsageError
from kvwatch.model import FailureReason
from kvwatch.plan.options import Pool, Serving
from kvwatch.plan.plan import build_plan
from kvwatch.plan.render import render, render_plain
from kvwatch.plan.sizes import format_size, parse_size

GIB = 2**30
LLAMA2_7B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "torch_dtype": "float16",
    "max_position_embeddings": 4096,
}
LOG = """\
(APIServer pid=1) INFO [api_server.py:1896] vLLM API server version 0.10.2
(APIServer pid=1) INFO [utils.py:328] non-default args: {'max_model_len': 8192, 'max_num_seqs': 48}
(EngineCore_DP0 pid=9) INFO [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: max_seq_len=8192, kv_cache_dtype=auto
(EngineCore_DP0 pid=9) INFO [gpu_worker.py:298] Available KV cache memory: 5.32 GiB
(EngineCore_DP0 pid=9) INFO [kv_cache_utils.py:864] GPU KV cache size: 43,600 tokens
(EngineCore_DP0 pid=9) INFO [kv_cache_utils.py:868] Maximum concurrency for 8,192 tokens per request: 5.32x
"""
SCRAPE = b"""\
vllm:num_requests_running{engine="0",model_name="demo-8b"} 0.0
vllm:num_requests_waiting{engine="0",model_name="demo-8b"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="demo-8b"} 0.0
vllm:num_preemptions_total{engine="0",model_name="demo-8b"} 0.0
vllm:generation_tokens_total{engine="0",model_name="demo-8b"} 20000.0
vllm:request_prompt_tokens_sum{engine="0",model_name="demo-8b"} 30100.0
vllm:request_prompt_tokens_count{engine="0",model_name="demo-8b"} 100.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="demo-8b"} 100.0
vllm:request_generation_tokens_sum{engine="0",model_name="demo-8b"} 20000.0
vllm:request_generation_tokens_count{engine="0",model_name="demo-8b"} 100.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="demo-8b"} 100.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",kv_cache_max_concurrency="1.25",kv_cache_size_tokens="5120"} 1.0
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA2_7B))
    return path


def no_fetch(url):
    raise AssertionError(f"{url} was asked for")


class Clock:
    """Seconds that pass only by waiting."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def unix(self):
        return 1_700_000_000 + self.now

    def wait(self, seconds):
        self.now += seconds


def run(*arguments, get=no_fetch):
    parser = argparse.ArgumentParser(prog="kvwatch")
    add_arguments(parser)
    args = parser.parse_args([*map(str, arguments)])
    out = io.StringIO()
    clock = Clock()
    assert args.run(args, Outside(get, clock, clock.wait, out)) == 0
    return out.getvalue()


def planned(*arguments, get=no_fetch):
    return json.loads(run(*arguments, "--format", "json", get=get))


def option(plan, name):
    return next(o for o in plan["options"] if o["name"] == name)


def test_the_playbooks_arithmetic_to_the_byte(config):
    first = planned("--config", config, "--kv-cache-memory", "24GiB", "--max-num-seqs", 32)
    as_given = option(first, "as given")
    assert as_given["bytes_per_token"] == 524_288
    assert as_given["bytes_per_sequence"] == 2 * GIB
    assert (as_given["full_sequences"], as_given["full_safe"], as_given["max_num_seqs"]) == (12, 9, None)
    assert first["flags"] == ["--max-model-len 4096"]
    # 32 full-length requests want 64 GiB of a 24 GiB pool.
    assert "32 sequences of 4096 tokens want 2.67 times the pool: 12 fit" in first["notes"]


def test_gpu_memory_less_weights_activations_and_the_rest_is_kv(config):
    first = planned("--config", config, "--gpu-memory", "24GiB", "--weights", "14GiB", "--gpu-memory-utilization", 0.92)
    as_given = option(first, "as given")
    # 24 x 0.92 - 14 - 2 - 1 = 5.08 GiB: 2.54 sequences of 2 GiB
    assert as_given["kv_memory"] == int(24 * GIB * 0.92 - 17 * GIB)
    assert (as_given["full_sequences"], as_given["full_safe"]) == (2, 2)
    assert as_given["pool_tokens"] == as_given["kv_memory"] // (64 * 524_288) * 64


def test_what_ifs_change_one_thing_each(config):
    first = planned("--config", config, "--gpu-memory", "24GiB", "--weights", "14GiB")
    assert [o["name"] for o in first["options"]] == ["as given", "fp8 KV", "4-bit weights", "length 2048", "util. 0.95", "2 GPUs"]
    fits = {o["name"]: o["full_sequences"] for o in first["options"]}
    # fp8: 5.08 ÷ 1; 4-bit: 24 x .92 - 5 - 3 = 14.08; half length ÷ 1 GiB; .95: 5.8; 2 GPUs: 22.08 - 7 - 3 = 12.08 ÷ 1 GiB each
    assert fits == {"as given": 2, "fp8 KV": 5, "4-bit weights": 7, "length 2048": 5, "util. 0.95": 2, "2 GPUs": 12}


def test_weights_are_computed_where_the_config_counts_them(config):
    first = planned("--config", config, "--gpu-memory", "24GiB")
    assert option(first, "as given")["weights"] == 2 * 6_738_415_616


def test_a_what_if_that_cannot_be_says_why_in_its_column(config):
    config.write_text(json.dumps(LLAMA2_7B | {"num_attention_heads": 31, "num_key_value_heads": 31, "head_dim": 128}))
    first = planned("--config", config, "--gpu-memory", "24GiB", "--weights", "14GiB")
    assert option(first, "2 GPUs")["impossible"] == "31 attention heads cannot be split over 2 GPUs"


def test_typical_requests_set_the_number(config):
    first = planned("--config", config, "--kv-cache-memory", "24GiB", "--typical-tokens", 1200)
    as_given = option(first, "as given")
    # 24 GiB are 768 blocks of 64 tokens; 1200 tokens take 19: 40.4, x 0.8 = 32.3
    assert (as_given["typical_sequences"], as_given["typical_safe"], as_given["max_num_seqs"]) == (40, 32, 40)
    assert "sized by the usual request: 12 would fit if every request had full length" in first["notes"]


def test_a_log_is_enough_for_its_own_pool(tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(LOG)
    first = planned("--log", log, "--typical-tokens", 1000)
    as_is = option(first, "as it is")
    assert (as_is["pool_tokens"], as_is["full_sequences"], as_is["typical_sequences"]) == (43600, 5, 43)
    assert option(first, "fp8 KV")["pool_tokens"] == 87200
    assert "vLLM's own count: 5.32 sequences of 8192 tokens" in first["notes"]
    assert "48 sequences of 1000 tokens want 1.12 times the pool: 43 fit" in first["notes"]


def test_a_log_and_a_config_know_the_memory_too(tmp_path, config):
    log = tmp_path / "vllm.log"
    log.write_text(LOG)
    as_given = option(planned("--log", log, "--config", config, "--max-model-len", 4096), "as given")
    assert as_given["kv_memory"] == round(5.32 * GIB)
    assert as_given["full_sequences"] == 2


def test_a_live_server_says_its_pool_and_its_usual_request():
    first = planned("--url", "http://127.0.0.1:8000/metrics", get=lambda _url: SCRAPE)
    as_is = option(first, "as it is")
    assert (as_is["pool_tokens"], as_is["max_model_len"], as_is["full_sequences"]) == (5120, 4096, 1)
    assert (first["typical_tokens"], as_is["typical_sequences"], as_is["typical_safe"]) == (501.0, 10, 8)
    # 501 tokens take 16 blocks of 32: 512; as `check` counts it
    assert first["flags"] == ["--max-num-seqs 10", "--max-model-len 4096"]


def test_a_live_server_and_a_config_know_the_bytes(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 512})
    )
    as_given = option(planned("--url", "http://x/metrics", "--config", path, get=lambda _url: SCRAPE), "as given")
    assert (as_given["bytes_per_token"], as_given["kv_memory"], as_given["pool_tokens"]) == (4096, 5120 * 4096, 5120)


BLOCKS_ONLY = SCRAPE.replace(b'kv_cache_max_concurrency="1.25",kv_cache_size_tokens="5120"', b'num_gpu_blocks="330018"').replace(
    b'"32"', b'"16"'
)
"""As vLLM before 0.24 shows its pool."""


@pytest.mark.parametrize(
    ("name", "pool", "at_most"),
    [
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", 330017 * 16, None, id="one-kind-by-its-name"),
        pytest.param("demo-8b", None, 330017 * 16, id="a-name-that-says-nothing"),
    ],
)
def test_a_page_of_blocks_is_the_pool_only_where_all_layers_are_of_one_kind(name, pool, at_most):
    plan = planned("--url", "http://x/metrics", get=lambda _url: BLOCKS_ONLY.replace(b"demo-8b", name.encode()))
    as_is = option(plan, "as it is")
    assert (as_is["pool_tokens"], as_is["pool_tokens_at_most"]) == (pool, at_most)
    assert any(note.startswith("upper bound") for note in plan["notes"]) == (at_most is not None)


@pytest.mark.parametrize("name", ["openai/gpt-oss-120b", "google/gemma-3-27b-it", "Qwen/Qwen3-Next-80B-A3B-Instruct", "ai21labs/Jamba-1.5"])
def test_a_page_of_blocks_is_refused_for_a_family_of_several_kinds(name):
    with pytest.raises(UsageError, match="keep different things, and its page shows only blocks"):
        planned("--url", "http://x/metrics", get=lambda _url: BLOCKS_ONLY.replace(b"demo-8b", name.encode()))


def test_the_config_beside_such_a_page_counts_its_blocks(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt_oss", "max_position_embeddings": 131072}))
    arguments = ["--url", "http://x/metrics", "--config", path, "-tp", 4, "--max-model-len", 16384]
    as_given = option(planned(*arguments, get=lambda _url: BLOCKS_ONLY), "as given")
    # 18 full layers and 18 with a window of 128: 1024 + ceil((127 + 2048) / 16) + 1 = 1161 blocks a request
    assert (as_given["full_sequences"], as_given["pool_tokens"]) == (284, int(330018 / 1161 * 16384))


def test_a_log_of_several_kinds_before_0_21_is_counted_by_vllms_own_concurrency(tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(
        "INFO Setting attention block size to 784 tokens to ensure that attention page size is >= mamba page size.\n"
        "INFO GPU KV cache size: 290,864 tokens\nINFO Maximum concurrency for 32,768 tokens per request: 33.04x\n"
    )
    as_is = option(planned("--log", log, "--typical-tokens", 8192), "as it is")
    # 1487 blocks; 8192 tokens take 11 and three groups of states one each
    assert (as_is["full_sequences"], as_is["blocks"], as_is["typical_sequences"]) == (33, 1487, 106)


def test_without_a_typical_length_a_table_of_lengths_says_what_fits(config):
    first = option(planned("--config", config, "--kv-cache-memory", "24GiB"), "as given")
    assert [(fit["tokens"], fit["sequences"]) for fit in first["lengths"]] == [(1024, 48), (2048, 24), (4096, 12)]
    assert "1 024 tokens" in run("--config", config, "--kv-cache-memory", "24GiB")


def test_pipeline_stages_share_the_layers(config):
    halves = option(planned("--config", config, "--kv-cache-memory", "12GiB", "-pp", 2), "as given")
    assert (halves["bytes_per_token"], halves["full_sequences"]) == (262_144, 12)


def test_what_is_not_understood_is_an_upper_bound_and_says_so(config):
    config.write_text(json.dumps(LLAMA2_7B | {"model_type": "novel", "sliding_window": 128, "window_map_of_layers": [0, 1]}))
    plan = planned("--config", config, "--kv-cache-memory", "24GiB")
    assert option(plan, "as given")["full_sequences"] == 12
    assert any(note.startswith("upper bound") for note in plan["notes"])


def test_text_is_plain_when_piped_and_names_every_column(config):
    text = run("--config", config, "--gpu-memory", "24GiB", "--weights", "14GiB")
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[2].split("  ")[0] == "on each GPU"
    assert all(name in lines[2] for name in ("as given", "fp8 KV", "4-bit weights", "length 2048", "util. 0.95", "2 GPUs"))
    assert any(line.startswith("KV per token") and "512 KiB" in line and "256 KiB" in line for line in lines)
    assert "recommended: vllm serve MODEL --max-model-len 4096 --gpu-memory-utilization 0.92" in lines


def test_a_terminal_of_80_columns_holds_the_table():
    plan = build_plan(Serving(read_model(LLAMA2_7B), 4096, gpu_memory=24 * GIB, weights=14 * GIB), source="plan", typical_tokens=1200)
    shown_in = io.StringIO()
    console = Console(file=shown_in, width=80, force_terminal=True, color_system=None)
    console.print(render(plan))
    lines = [line.rstrip() for line in shown_in.getvalue().splitlines()]
    assert any("KV per token" in line and line.count("KiB") == len(plan.options) for line in lines)
    assert not any("…" in line for line in lines)


def test_both_forms_of_text_say_the_same_numbers():
    plan = build_plan(Pool(5120, 4096, "auto"), source="plan", typical_tokens=501)
    shown_in = io.StringIO()
    console = Console(file=shown_in, width=120, color_system=None)
    console.print(render(plan))
    assert shown_in.getvalue().split() == render_plain(plan).split()


@pytest.mark.parametrize(
    ("change", "arguments", "reason"),
    [
        pytest.param(
            {}, ["--gpu-memory", "24GiB", "--weights", "40GiB"], r"weights \(40.00 GiB\) do not fit", id="weights-larger-than-memory"
        ),
        pytest.param({"num_hidden_layers": 0}, ["--gpu-memory", "24GiB"], "num_hidden_layers is 0", id="zero-layers"),
        pytest.param({"layer_types": ["warp"] * 32}, ["--gpu-memory", "24GiB"], "'warp' is not one", id="unknown-architecture"),
        pytest.param({"model_type": "mixtral"}, ["--gpu-memory", "24GiB"], "give it \\(--weights 14GiB\\)", id="weights-unknown"),
        pytest.param({}, [], "--gpu-memory 24GiB", id="memory-unknown"),
        pytest.param(
            {},
            ["--gpu-memory", "17GiB", "--weights", "12GiB", "--max-model-len", "4096"],
            "not even one sequence of 4096",
            id="one-does-not-fit",
        ),
        pytest.param({}, ["--gpu-memory", "24GiB", "--weights", "14GiB", "-tp", "3"], "32 attention heads", id="heads-do-not-split"),
        pytest.param({}, ["--gpu-memory", "24GiB", "--gpu-memory-utilization", "1.5"], "at most 1", id="utilization"),
        pytest.param({}, ["--gpu-memory", "24GiB", "--kv-cache-dtype", "fp4"], "'fp4' is not one", id="dtype"),
        pytest.param({"max_position_embeddings": None}, ["--gpu-memory", "24GiB"], "give --max-model-len", id="length-unknown"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(config, change, arguments, reason):
    config.write_text(json.dumps(LLAMA2_7B | change))
    with pytest.raises(UsageError, match=reason):
        run("--config", config, *arguments)


def test_the_longest_that_would_fit_is_named(config):
    # 17 x .92 - 12 - 3 = 0.64 GiB: 20 blocks of 64 tokens, of which one is held back
    with pytest.raises(UsageError, match=r"it takes 2.00 GiB of 0.64 GiB; 1216 tokens would"):
        run("--config", config, "--gpu-memory", "17GiB", "--weights", "12GiB", "--max-model-len", 4096)


def test_a_models_own_length_that_does_not_fit_is_shortened_and_it_is_said(config):
    plan = planned("--config", config, "--gpu-memory", "17GiB", "--weights", "12GiB")
    first = option(plan, "as given")
    assert (first["max_model_len"], first["full_sequences"], first["longest_that_starts"]) == (4096, 0, 1216)
    assert "--max-model-len 1216" in plan["flags"]


def test_a_server_that_did_not_start_is_no_pool(tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(
        "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is needed, which is larger "
        "than the available KV cache memory (5.32 GiB). Based on the available memory, the estimated maximum model length is 43584."
    )
    with pytest.raises(UsageError, match=r"did not start: not even one request of 131072 tokens .* --max-model-len 43584 would start"):
        run("--log", log)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot read"), ("{", "is not JSON"), ("[]", "holds no object")],
    ids=["missing", "not-json", "no-object"],
)
def test_a_config_that_is_none_is_refused(tmp_path, content, reason):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=reason):
        run("--config", path, "--gpu-memory", "24GiB")


def test_a_log_that_is_none_is_refused(tmp_path):
    path = tmp_path / "vllm.log"
    with pytest.raises(UsageError, match="cannot read"):
        run("--log", path)
    path.write_text("hello\n")
    with pytest.raises(UsageError, match="no KV cache size in this log"):
        run("--log", path)


def test_a_server_that_cannot_be_read_is_refused():
    def refuse(url):
        raise ScrapeError(FailureReason.CONNECT, "connection refused")

    with pytest.raises(UsageError, match="connect: connection refused"):
        run("--url", "http://127.0.0.1:1/metrics", get=refuse)
    with pytest.raises(UsageError, match="does not say how many tokens"):
        run("--url", "http://x/metrics", get=lambda _url: b"\n".join(SCRAPE.splitlines()[:-1]) + b"\n")


def test_nothing_to_plan_for_is_refused():
    with pytest.raises(UsageError, match="give --config FILE, --url URL or --log FILE"):
        run()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("80GB", 80 * 10**9),
        ("1.5 GiB", 3 * GIB // 2),
        ("512Ki", 524288),
        ("80", 80 * GIB),
        ("10737418240", 10 * GIB),
        ("2gib", 2 * GIB),
    ],
)
def test_sizes_are_read_as_written(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "24G", "24 parsecs", "1,5GiB", "24576"])
def test_sizes_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=r"is not a size|has no unit"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(524288, "512 KiB"), (2 * GIB, "2.00 GiB"), (15_676_000_000, "14.6 GiB"), (70272, "68.6 KiB"), (7, "7 B"), (200 * GIB, "200 GiB")],
)
def test_sizes_are_written_with_three_digits(size, text):
    assert format_size(size) == text
