from __future__ import annotations

import json
from dataclasses import replace

from exporter_views import NOW, SIGNALS, STORM, STORMING, UNPOLLED, VIEW, StillClock, failed

from kvwatch.exporter.web.status import status_json
from kvwatch.model import Cause, State
from kvwatch.text import rfc3339


def document(*views, clock=None):
    return json.loads(status_json(views, clock or StillClock()), parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))


def test_times_are_rfc_3339_in_utc():
    assert rfc3339(1_800_000_000.25) == "2027-01-15T08:00:00.250Z"


def test_a_storming_engine_is_told_in_full():
    said = document(VIEW)
    assert (said["version"], said["generated"]) == (1, "2027-01-15T08:00:00.000Z")
    (target,) = said["targets"]
    (engine,) = target.pop("engines")
    assert target == {
        "name": "vllm-0",
        "url": "http://127.0.0.1:8000/metrics",
        "labels": {},
        "up": True,
        "stale": False,
        "last_success": "2027-01-15T07:59:58.000Z",
        "scrape_seconds": 0.004,
        "failure": None,
        "alerts": [],
        "sources": {"kv_usage": "vllm:kv_cache_usage_perc", "running": "vllm:num_requests_running"},
    }
    signals = engine.pop("signals")
    assert engine == {
        "model_name": "demo-8b",
        "engine": "0",
        "state": "kv_bound",
        "cause": "preempting",
        "evidence": ["20 preemptions in 120 s", "KV cache peaked at 0.998"],
        "since": "2027-01-15T07:59:00.000Z",
        "transitions": 2,
        "state_seconds": {"healthy": 500.0, "kv_bound": 60.0, "compute_bound": 0.0, "unknown": 8.5},
        "alerts": [
            {
                "name": "PreemptionStorm",
                "severity": "critical",
                "since": "2027-01-15T07:59:20.000Z",
                "summary": STORM.summary,
                "description": STORM.description,
            }
        ],
        "advice": [
            {
                "lever": "--max-num-seqs",
                "current": "32",
                "proposed": "11",
                "reason": "24 576 KV tokens / 1 720 tokens per sequence, less 20 % headroom: 11",
                "effect": "Preemptions stop; waiting moves to the queue.",
                "caution": "Change nothing else, measure for ten minutes.",
                "gain": None,
            }
        ],
        "baseline": {
            "lines": [
                {"name": "ttft", "change": 0.5, "worse": True, "words": "time to first token, P95 1.20 s against 800 ms (+50.0 %)"},
            ],
            "refusals": [],
        },
    }
    assert signals["running"] == 12.0
    assert signals["capacity_tokens"] == 24_576
    assert signals["slow"]["preemption_ratio"] == 0.125
    assert signals["fast"]["kv_usage"] == {"mean": 0.93, "low": 0.81, "peak": 0.9975, "last": 0.96}
    assert signals["time_to_first_token"]["p99"] == 11.25
    assert signals["gpu_utilization"] is None
    assert "at" not in signals


def test_a_stale_view_is_unknown_without_numbers_and_without_advice():
    (target,) = document(VIEW, clock=StillClock(now=NOW + 58.0))["targets"]
    (engine,) = target["engines"]
    assert (target["up"], target["stale"], target["sources"]) == (False, True, {})
    assert (engine["state"], engine["cause"], engine["signals"]) == ("unknown", "stale", None)
    assert (engine["alerts"], engine["advice"]) == ([], [])
    assert engine["evidence"] == ["no poll of this target has finished for 60 s"]


def test_an_engine_that_was_unknown_before_it_became_stale_keeps_its_since():
    (target,) = document(failed(), clock=StillClock(now=NOW + 58.0, wall=1_800_000_058.0))["targets"]
    assert target["engines"][0]["since"] == "2027-01-15T07:59:58.000Z"


def test_a_failed_poll_says_its_reason():
    (target,) = document(failed())["targets"]
    assert target["up"] is False
    assert target["failure"] == {"reason": "timeout", "detail": "no answer within 4 s"}
    assert target["engines"][0]["cause"] == "unreachable"


def test_a_target_never_polled_has_no_engines_and_no_times():
    (target,) = document(UNPOLLED)["targets"]
    assert (target["up"], target["stale"], target["engines"]) == (False, False, [])
    assert (target["last_success"], target["scrape_seconds"]) == (None, None)


def test_an_engine_nobody_knows_yet_is_null():
    verdict = replace(STORMING.verdict, engine=None, state=State.UNKNOWN, cause=Cause.UNREACHABLE)
    (target,) = document(replace(VIEW, assessments=(replace(STORMING, verdict=verdict, signals=None),)))["targets"]
    assert (target["engines"][0]["model_name"], target["engines"][0]["engine"]) == (None, None)


def test_numbers_that_are_none_become_null_and_never_nan():
    signals = replace(SIGNALS, kv_usage=float("nan"), seconds_to_full=float("inf"))
    (target,) = document(replace(VIEW, assessments=(replace(STORMING, signals=signals),)))["targets"]
    said = target["engines"][0]["signals"]
    assert (said["kv_usage"], said["seconds_to_full"]) == (None, None)


def test_the_labels_of_a_target_are_told():
    assert document(replace(VIEW, labels={"pod": "vllm-0"}))["targets"][0]["labels"] == {"pod": "vllm-0"}
