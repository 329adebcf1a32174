"""Startup logs of vLLM 0.4.3 to 0.34, started and not, held against what is right for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvwatch.capacity.startup_log import GIB, read_startup_log

LOGS = Path(__file__).parents[1] / "data" / "oracle" / "logs"
EXPECTED = json.loads((LOGS / "expected.json").read_text())
STARTED = [name for name, expected in EXPECTED.items() if expected["started"]]
FAILED = [name for name, expected in EXPECTED.items() if not expected["started"] and "KV cache size" not in expected["reason"]]
NONE = [name for name, expected in EXPECTED.items() if not expected["started"] and "KV cache size" in expected["reason"]]


def read(name):
    return read_startup_log((LOGS / f"{name}.log").read_text(errors="replace").splitlines())


@pytest.mark.parametrize("name", STARTED)
def test_the_pool_of_a_server_that_started_is_read(name):
    log, expected = read(name), EXPECTED[name]
    assert log.failure is None
    assert log.kv_cache_tokens == pytest.approx(expected["pool_tokens"], abs=expected.get("tolerance", 0))
    assert log.max_model_len == expected["max_model_len"]
    assert log.kv_cache_tokens // log.max_model_len == expected.get("full_sequences", log.kv_cache_tokens // log.max_model_len)
    assert log.vllm_version == expected.get("version")
    if "kv_memory_gib" in expected:
        assert log.kv_memory == pytest.approx(expected["kv_memory_gib"] * GIB, abs=0.01 * GIB)
    if "weights_gib" in expected:
        assert log.weights == pytest.approx(expected["weights_gib"] * GIB, abs=0.01 * GIB)


@pytest.mark.parametrize("name", FAILED)
def test_a_server_that_did_not_start_says_why_and_what_would_start(name):
    log, expected = read(name), EXPECTED[name]
    assert log.failure
    if "largest_that_starts" in expected:
        assert log.estimated_max_model_len == pytest.approx(expected["largest_that_starts"], abs=expected.get("tolerance", 0))
        assert f"--max-model-len {log.estimated_max_model_len}" in log.remedy
    if "max_num_seqs_that_starts" in expected:
        assert log.remedy == f"--max-num-seqs {expected['max_num_seqs_that_starts']} would start"


@pytest.mark.parametrize("name", NONE)
def test_a_log_that_ends_before_the_pool_or_is_none_is_no_failed_start(name):
    with pytest.raises(ValueError, match="no KV cache size in this log"):
        read(name)


def test_enough_logs_of_both_kinds_are_held():
    assert len(STARTED) >= 15
    assert len(FAILED) >= 10
