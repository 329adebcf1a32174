"""Every form in which vLLM has logged its KV cache."""

# ruff: noqa: E501 - log lines are quoted as vLLM writes them

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvwatch.capacity.startup_log import GIB, StartupLog, read_startup_log
from kvwatch.config.policy import KnownConfig

V0_06 = """\
INFO 11-01 10:00:00 api_server.py:495] vLLM API server version 0.6.3.post1
INFO 11-01 10:00:00 api_server.py:496] args: Namespace(host=None, block_size=16, max_model_len=4096, max_num_batched_tokens=None, max_num_seqs=32)
INFO 11-01 10:00:01 llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: model='m', max_seq_len=4096, kv_cache_dtype=auto
INFO 11-01 10:00:09 model_runner.py:1067] Loading model weights took 12.5523 GB
INFO 11-01 10:00:12 gpu_executor.py:122] # GPU blocks: 2724, # CPU blocks: 512
INFO 11-01 10:00:12 gpu_executor.py:126] Maximum concurrency for 4096 tokens per request: 10.64x
"""
V0_02 = "INFO 01-01 10:00:12 llm_engine.py:316] # GPU blocks: 1000, # CPU blocks: 2048\n"
V0_PLATFORM = (
    "INFO executor_base.py:111] # cuda blocks: 1000, # CPU blocks: 512\nINFO] Maximum concurrency for 2000 tokens per request: 16.00x\n"
)
V1_07 = "INFO kv_cache_utils.py:396] # GPU blocks: 2725\nINFO] Maximum concurrency for 8192 tokens per request: 5.32x\n"
V1_08 = """\
INFO 04-01 10:00:00 [api_server.py:1028] vLLM API server version 0.8.5
INFO 04-01 10:00:05 [gpu_model_runner.py:1347] Model loading took 14.9596 GiB and 3.123456 seconds
INFO 04-01 10:00:09 [kv_cache_utils.py:634] GPU KV cache size: 43,600 tokens
INFO 04-01 10:00:09 [kv_cache_utils.py:637] Maximum concurrency for 8,192 tokens per request: 5.32x
"""
V1_010 = """\
(APIServer pid=1) INFO 09-01 [api_server.py:1896] vLLM API server version 0.10.2
(APIServer pid=1) INFO 09-01 [utils.py:328] non-default args: {'model': 'm', 'max_model_len': 8192, 'max_num_seqs': 48, 'max_num_batched_tokens': 4096}
(EngineCore_DP0 pid=9) INFO 09-01 [gpu_worker.py:298] Available KV cache memory: 5.32 GiB
(EngineCore_DP0 pid=9) INFO 09-01 [kv_cache_utils.py:864] GPU KV cache size: 43,600 tokens
(EngineCore_DP0 pid=9) INFO 09-01 [kv_cache_utils.py:868] Maximum concurrency for 8,192 tokens per request: 5.32x
"""
V1_028 = "(EngineCore pid=9) INFO [kv_cache_utils.py] GPU KV cache size: 43,600 tokens, Maximum concurrency for 8,192 tokens per request: 5.32x\n"
# From the start of the server of the recordings, shortened.
V1_032 = """\
(APIServer pid=11243) INFO 11-29 17:15:24 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0
(APIServer pid=11243) INFO 11-29 17:15:24 [api_utils.py:286] non-default args: {'dtype': 'bfloat16', 'max_model_len': 4096, 'block_size': 32, \
'num_gpu_blocks_override': 160, 'max_num_batched_tokens': 2048, 'max_num_seqs': 64}
(EngineCore pid=11404) INFO 11-29 17:15:36 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: dtype=torch.bfloat16, max_seq_len=4096, \
kv_cache_dtype=auto
(EngineCore pid=11404) INFO 11-29 17:15:44 [kv_cache_utils.py:2619] Overriding num_gpu_blocks=8192 with num_gpu_blocks_override=160
(EngineCore pid=11404) INFO 11-29 17:15:44 [kv_cache_utils.py:2327] CPU KV cache size: 5,120 tokens, Maximum concurrency for 4,096 tokens per request: 1.25x
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            V0_06,
            StartupLog(
                vllm_version="0.6.3.post1",
                kv_cache_tokens=43584,
                max_model_len=4096,
                max_concurrency=10.64,
                blocks=2724,
                block_size=16,
                kv_cache_dtype="auto",
                weights=round(12.5523 * GIB),
                max_num_seqs=32,
            ),
            id="V0-blocks-and-concurrency",
        ),
        pytest.param(V0_02, StartupLog(kv_cache_tokens=16000, blocks=1000, block_size=16), id="V0.2-blocks-only"),
        pytest.param(
            V0_PLATFORM,
            StartupLog(kv_cache_tokens=32000, max_model_len=2000, max_concurrency=16.0, blocks=1000, block_size=32),
            id="V0-device-word-block-size-from-concurrency",
        ),
        pytest.param(
            V1_07,
            StartupLog(kv_cache_tokens=43600, max_model_len=8192, max_concurrency=5.32, blocks=2725, block_size=16),
            id="V1-0.7-blocks",
        ),
        pytest.param(
            V1_08,
            StartupLog(vllm_version="0.8.5", kv_cache_tokens=43600, max_model_len=8192, max_concurrency=5.32, weights=round(14.9596 * GIB)),
            id="V1-0.8-two-lines",
        ),
        pytest.param(
            V1_010,
            StartupLog(
                vllm_version="0.10.2",
                kv_cache_tokens=43600,
                max_model_len=8192,
                max_concurrency=5.32,
                kv_memory=round(5.32 * GIB),
                max_num_seqs=48,
                max_num_batched_tokens=4096,
            ),
            id="V1-0.10-process-prefix-and-arguments",
        ),
        pytest.param(V1_028, StartupLog(kv_cache_tokens=43600, max_model_len=8192, max_concurrency=5.32), id="V1-0.28-one-line"),
        pytest.param(
            V1_032,
            StartupLog(
                vllm_version="0.32.0",
                kv_cache_tokens=5120,
                max_model_len=4096,
                max_concurrency=1.25,
                blocks=160,
                block_size=32,
                kv_cache_dtype="auto",
                max_num_seqs=64,
                max_num_batched_tokens=2048,
            ),
            id="V1-0.32-real",
        ),
        pytest.param(
            V1_028.replace("GPU KV", "GPU + host KV"),
            StartupLog(kv_cache_tokens=43600, max_model_len=8192, max_concurrency=5.32),
            id="V1-0.33-host",
        ),
        pytest.param(
            "INFO Auto-fit max_model_len: reduced from 131,072 to 43,600 to fit\nINFO GPU KV cache size: 43,600 tokens\n",
            StartupLog(kv_cache_tokens=43600, max_model_len=43600),
            id="auto-fit",
        ),
        pytest.param(
            V1_010 + V1_08,
            StartupLog(vllm_version="0.8.5", kv_cache_tokens=43600, max_model_len=8192, max_concurrency=5.32, weights=round(14.9596 * GIB)),
            id="the-last-start-counts",
        ),
    ],
)
def test_every_form_is_read(text, expected):
    said = replace(read_startup_log(text.splitlines()), form=None, device=None)
    assert said == expected


@pytest.mark.parametrize("text", [V0_06, V1_07, V1_08, V1_010, V1_028, V1_032])
def test_the_pool_agrees_with_vllms_own_maximum_concurrency(text):
    log = read_startup_log(text.splitlines())
    assert round(log.kv_cache_tokens / log.max_model_len, 2) == log.max_concurrency


@pytest.mark.parametrize(
    ("line", "failure", "length", "estimate"),
    [
        pytest.param(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
            "no memory was left for KV blocks",
            None,
            None,
            id="no-blocks",
        ),
        pytest.param(
            "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (21000).",
            "not even one request of 32768 tokens fits the KV cache (21000 tokens)",
            32768,
            21000,
            id="V0-too-long",
        ),
        pytest.param(
            "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than "
            "the available KV cache memory (5.32 GiB). Based on the available memory, the estimated maximum model length is 43584. Try",
            "not even one request of 131072 tokens fits the KV cache",
            131072,
            43584,
            id="V1-too-long",
        ),
        pytest.param(
            "ValueError: To serve at least one request with the model's max seq len (131072), 16.00 GiB KV cache is needed",
            "not even one request of 131072 tokens fits the KV cache",
            131072,
            None,
            id="V1-0.22-spelling",
        ),
    ],
)
def test_a_start_that_failed_says_why(line, failure, length, estimate):
    log = read_startup_log([line])
    assert (log.failure, log.max_model_len, log.estimated_max_model_len) == (failure, length, estimate)


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(
            lambda line: {"log": line + "\n", "stream": "stderr", "time": "2026-01-31T12:00:00.000000000Z"}, id="docker's json-file"
        ),
        pytest.param(lambda line: {"__REALTIME_TIMESTAMP": "1769860800000000", "MESSAGE": line}, id="journalctl -o json"),
        pytest.param(lambda line: {"@timestamp": "2026-01-31T12:00:00Z", "level": "info", "message": line}, id="a log shipper"),
    ],
)
@pytest.mark.parametrize("text", [V0_06, V1_08, V1_010, V1_032])
def test_a_log_in_json_is_read_as_the_log_in_it(text, wrap):
    assert read_startup_log(json.dumps(wrap(line)) for line in text.splitlines()) == read_startup_log(text.splitlines())


def test_a_log_without_a_kv_cache_is_refused():
    with pytest.raises(ValueError, match="no KV cache size in this log"):
        read_startup_log(["hello", "INFO: GET /metrics 200 OK"])


def test_the_log_speaks_as_known_configuration():
    assert read_startup_log(V1_010.splitlines()).known == KnownConfig(
        max_num_seqs=48, max_num_batched_tokens=4096, max_model_len=8192, kv_cache_tokens=43600, vllm_version="0.10.2"
    )


START = "INFO vLLM API server version 0.20.0\n"


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        pytest.param(
            START + "ValueError: Model architectures ['Foo'] are not supported for now.",
            "ValueError: Model architectures ['Foo'] are not supported for now.",
            id="model-not-supported",
        ),
        pytest.param(
            START + "(APIServer pid=1) OSError: [Errno 98] Address already in use", "OSError: [Errno 98] Address already in use", id="port"
        ),
        pytest.param(
            START
            + "(EngineCore pid=9) AssertionError: Sliding window for some\nRuntimeError: Engine core initialization failed. See root cause above.",
            "AssertionError: Sliding window for some",
            id="the-root-cause-stands-above-what-the-server-says-last",
        ),
        pytest.param(
            START + "torch.cuda.SomeError: strange\n" + "ValueError: No available memory for the cache blocks.",
            "no memory was left for KV blocks",
            id="a-known-wording-goes-before-any-exception",
        ),
        pytest.param(
            START + "RuntimeError: Engine core initialization failed. See root cause above.",
            "the engine failed while it started; the root cause stands above this line",
            id="root-cause-cut-off",
        ),
        pytest.param(
            START + "ImportError: no flash attention, using another\n" + V1_028, None, id="an-exception-before-a-pool-is-no-failure"
        ),
    ],
)
def test_a_start_that_ends_with_any_exception_names_the_root_cause(text, failure):
    assert read_startup_log(text.splitlines()).failure == failure


def test_an_exception_alone_is_no_log_of_vllm():
    with pytest.raises(ValueError, match="no KV cache size"):
        read_startup_log(["KeyError: 'x'"])


def test_the_pools_of_two_engines_that_start_at_once_are_told_apart():
    text = """\
(EngineCore_DP0 pid=1) INFO GPU KV cache size: 90,000 tokens
(EngineCore_DP1 pid=2) INFO GPU KV cache size: 60,000 tokens
(EngineCore_DP0 pid=1) INFO Maximum concurrency for 8,192 tokens per request: 10.99x
(EngineCore_DP1 pid=2) INFO Maximum concurrency for 8,192 tokens per request: 7.32x
"""
    log = read_startup_log(text.splitlines())
    assert (log.kv_cache_tokens, log.max_concurrency) == (60_000, 7.32)
