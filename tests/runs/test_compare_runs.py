"""Which change of which line is a regression, and which runs are not compared at all."""

from __future__ import annotations

import pytest
from some_runs import a_run

from kvwatch.runs.compare import LineOutcome, compare


@pytest.mark.parametrize(
    ("line", "candidate", "outcome"),
    [
        ("throughput", {"rate": 96.0}, "same"),
        ("throughput", {"rate": 94.0}, "worse"),
        ("throughput", {"rate": 106.0}, "better"),
        ("throughput", {"rate": None}, "missing"),
        ("preemption", {"preempted": 0.015}, "same"),
        ("preemption", {"preempted": 0.03}, "worse"),
        ("ttft", {"ttft": 1.09}, "same"),
        ("ttft", {"ttft": 1.11}, "worse"),
        ("ttft", {"ttft": 0.5}, "better"),
        ("itl", {"itl": 0.0221}, "worse"),
        ("p99", {"p99": 11.5}, "worse"),
        ("p99", {"p99": 10.5}, "same"),
    ],
)
def test_a_line_is_judged_by_its_tolerance(line, candidate, outcome):
    found = compare(a_run("base"), a_run("candidate", **candidate))
    assert {result.line.name: result.outcome for result in found.results}[line] == outcome
    assert found.regressed is (outcome == "worse")


def test_a_given_tolerance_goes_before_the_usual_one():
    tolerances = {"throughput": 0.05, "preemption": 0.02, "ttft": 0.20, "itl": 0.10, "p99": 0.10}
    assert not compare(a_run(), a_run(ttft=1.15), tolerances).regressed


def test_the_change_of_a_share_is_a_difference_not_a_quotient():
    found = compare(a_run(preempted=0.01), a_run(preempted=0.20))
    (result,) = [result for result in found.results if result.line.name == "preemption"]
    assert result.change == pytest.approx(0.19)
    assert result.outcome is LineOutcome.WORSE


@pytest.mark.parametrize(
    ("base", "candidate", "why"),
    [
        ({"requests": 29.0}, {}, "base has 29 finished requests"),
        ({}, {"requests": None}, "candidate has an unknown number of finished requests"),
        ({}, {"restarts": 1}, "server of the candidate was restarted"),
        ({}, {"mean_prompt_tokens": 400.0}, "prompts of 300 and 400 tokens"),
        ({}, {"mean_output_tokens": 100.0}, "outputs of 200 and 100 tokens"),
        ({}, {"requests_per_second": 6.0, "concurrency": 64.0}, "3.00 and 6.00 requests/s, 32 and 64 at once"),
        ({"requests_per_second": None}, {"concurrency": 64.0}, "32 and 64 at once"),
        ({}, {"requests_per_second": 3.4, "concurrency": 36.0}, "3.00 and 3.40 requests/s, 32 and 36 at once"),
        ({}, {"requests_per_second": 2.6, "concurrency": 28.0}, "3.00 and 2.60 requests/s, 32 and 28 at once"),
    ],
)
def test_other_loads_and_thin_runs_are_not_compared(base, candidate, why):
    found = compare(a_run(**base), a_run(**candidate))
    assert found.results == ()
    assert why in " ".join(found.refusals)
    assert not found.regressed


@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param({"concurrency": 90.0}, id="open arrivals: a slower server holds more requests"),
        pytest.param({"requests_per_second": 1.0}, id="a fixed number of clients: a slower server finishes fewer"),
        pytest.param({"mean_prompt_tokens": 330.0, "mean_output_tokens": 180.0}, id="another draw of the same lengths"),
        pytest.param({"requests_per_second": 2.6, "concurrency": 36.0}, id="clients that wait and clients that do not"),
        pytest.param({"requests_per_second": 3.2, "concurrency": 40.0}, id="hardly more requests, and slower"),
        pytest.param({"requests_per_second": None, "concurrency": None}, id="a source that does not say its load"),
    ],
)
def test_one_load_on_a_slower_server_is_still_one_load(candidate):
    assert compare(a_run(), a_run(**candidate)).refusals == ()


@pytest.mark.parametrize(
    ("candidate", "outcome"),
    [
        pytest.param({"rate": 92.0, "requests_per_second": 2.8, "concurrency": 29.5}, "same", id="a twelfth less was asked for and done"),
        pytest.param({"rate": 85.0, "requests_per_second": 2.8, "concurrency": 29.5}, "worse", id="less was done than was asked for"),
        pytest.param({"rate": 92.0, "requests_per_second": 2.8, "concurrency": 32.0}, "worse", id="as many clients got less"),
        pytest.param({"rate": 92.0, "requests_per_second": 3.0, "concurrency": 29.0}, "worse", id="as many requests gave less"),
    ],
)
def test_less_throughput_is_a_regression_only_where_not_less_was_asked_for(candidate, outcome):
    found = compare(a_run(), a_run(**candidate))
    assert {result.line.name: result.outcome for result in found.results}["throughput"] == outcome


def test_what_was_changed_is_told():
    found = compare(a_run(max_num_seqs=64, vllm_version="0.31.0"), a_run(max_num_seqs=10, vllm_version="0.32.0"))
    assert found.notes == ("vllm_version: 0.31.0 -> 0.32.0", "max_num_seqs: 64 -> 10")
