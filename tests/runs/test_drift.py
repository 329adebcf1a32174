"""An engine in production against the run that was measured before."""

from __future__ import annotations

import json

import pytest
from some_runs import a_run

from kvwatch.errors import ConfigError
from kvwatch.model import EngineId, Histogram, Scrape, Snapshot
from kvwatch.runs.drift import COMPARED_SECONDS, Drift, of_one_engine, read_baseline, tolerances_for

ENGINE = EngineId("demo-8b", "0")
POLL = 60.0


def baseline(**changes):
    """Two requests a second of 200 tokens, half of them with a first token within a second and half within two."""
    run = {"rate": 400.0, "ttft": 1.9, "requests": 1200.0, "requests_per_second": 2.0, "concurrency": 10.0, "model_name": "demo-8b"}
    return a_run("base.json", engines=1, mean_prompt_tokens=None, mean_output_tokens=None, **{**run, **changes})


def snapshot(at, *, engine=ENGINE, rate=2.0, tokens=200.0, late=0.0, running=10.0, preempted=0.0, since=0.0):
    """*late* is the share of the requests that wait between two and ten seconds for their first token."""
    count = rate * (at - since)
    bounds = ((count * (1 - late)) / 2, count * (1 - late), count, count)
    return Snapshot(
        engine, at, running=running, waiting=0.0, finished=count, generation_tokens=count * tokens, preemptions=preempted * count,
        time_to_first_token=Histogram((1.0, 2.0, 10.0), bounds, None),
    )  # fmt: skip


def found(drift, seconds=COMPARED_SECONDS, **numbers):
    """What is said of the engine after so many seconds."""
    said = {}
    for step in range(int(seconds / POLL) + 1):
        said = drift.observe(Scrape(step * POLL, (snapshot(step * POLL, **numbers),)))
    return said.get(ENGINE)


def worse(comparison):
    return {line.name for line in comparison.lines if line.worse}


@pytest.mark.parametrize(
    ("numbers", "lines"),
    [
        pytest.param({}, set(), id="the same load, as before"),
        pytest.param({"late": 0.5}, {"ttft"}, id="half of the first tokens are late"),
        pytest.param({"preempted": 0.2}, {"preemption"}, id="one in six that leave the batch is preempted"),
        pytest.param({"rate": 1.6}, {"throughput"}, id="as many clients, and a fifth fewer requests come of them"),
        pytest.param({"rate": 1.85, "running": 9.2}, set(), id="a little less was asked for, and that much less was done"),
        pytest.param({"rate": 2.0, "running": 25.0}, set(), id="more requests at once alone are no regression"),
    ],
)
def test_the_lines_that_got_worse_are_named(numbers, lines):
    assert worse(found(Drift(baseline()), **numbers)) == lines


def test_a_line_says_what_was_measured_against_what():
    (line,) = [line for line in found(Drift(baseline()), rate=1.6).lines if line.name == "throughput"]
    assert line.change == pytest.approx(-0.2)
    assert line.words == "generated tokens/s 320 against 400 (-20.0 %)"


@pytest.mark.parametrize(
    ("base", "numbers", "why"),
    [
        pytest.param({}, {"rate": 1.0, "running": 4.0}, "the loads differ: 2.00 and 1.00 requests/s, 10 and 4 at once", id="night"),
        pytest.param(
            {}, {"rate": 2.4, "running": 12.0}, "the loads differ: 2.00 and 2.40 requests/s, 10 and 12 at once", id="more of both"
        ),
        pytest.param({}, {"rate": 0.04}, "the present run has 24 finished requests; at least 30 are needed", id="few requests"),
        pytest.param({"model_name": "demo-70b"}, {}, "the baseline is of demo-70b, and this is demo-8b", id="another model"),
    ],
)
def test_another_load_is_not_compared_and_the_reason_is_given(base, numbers, why):
    comparison = found(Drift(baseline(**base)), **numbers)
    assert (comparison.lines, comparison.refusals) == ((), (why,))


def test_a_restart_is_not_compared():
    drift = Drift(baseline())
    for at in (0.0, 300.0):
        drift.observe(Scrape(at, (snapshot(at),)))
    (said,) = drift.observe(Scrape(600.0, (snapshot(600.0, since=500.0),))).values()
    assert said.refusals == ("the server of the present run was restarted during the run",)


def test_nothing_is_said_before_ten_minutes_are_over_and_without_a_baseline():
    assert found(Drift(baseline()), COMPARED_SECONDS - POLL) is None
    assert found(Drift(None)) is None


def test_what_was_said_holds_until_the_next_comparison():
    drift = Drift(baseline())
    assert worse(found(drift, late=0.5)) == {"ttft"}
    said = drift.observe(Scrape(660.0, (snapshot(660.0, late=0.5),)))
    assert worse(said[ENGINE]) == {"ttft"}


def test_engines_are_compared_one_by_one_and_one_that_left_is_forgotten():
    drift, other = Drift(baseline()), EngineId("demo-8b", "1")
    for at in (0.0, 600.0):
        said = drift.observe(Scrape(at, (snapshot(at), snapshot(at, engine=other, late=0.5))))
    assert {engine.engine: worse(comparison) for engine, comparison in said.items()} == {"0": set(), "1": {"ttft"}}
    assert set(drift.observe(Scrape(660.0, (snapshot(660.0),)))) == {ENGINE}
    assert set(drift.observe(Scrape(720.0, (snapshot(720.0), snapshot(720.0, engine=other))))) == {ENGINE}


def test_another_baseline_begins_anew_and_the_same_one_does_not():
    drift = Drift(baseline())
    found(drift)
    drift.reconfigure(baseline())
    assert set(drift.observe(Scrape(660.0, (snapshot(660.0),)))) == {ENGINE}
    drift.reconfigure(baseline(rate=500.0))
    assert drift.observe(Scrape(720.0, (snapshot(720.0),))) == {}


def test_of_a_run_of_four_engines_one_has_a_quarter_and_latencies_are_what_they_were():
    one = of_one_engine(a_run(rate=800.0, ttft=1.5, engines=4, requests=400.0, requests_per_second=8.0, concurrency=64.0))
    assert one.lines.generated_tokens_per_second == 200.0
    assert one.lines.time_to_first_token.p95 == 1.5
    conditions = one.conditions
    assert (conditions.requests, conditions.requests_per_second, conditions.concurrency, conditions.engines) == (100.0, 2.0, 16.0, 1)


def test_the_fewer_requests_the_more_is_left_to_chance():
    few, many = tolerances_for(100.0), tolerances_for(10_000.0)
    assert few["throughput"] == pytest.approx(0.05 + 2 * 0.1)
    assert few["preemption"] == pytest.approx(0.02 + 2 * 0.05)
    # ln 100 = 4.605; one request in a hundred is above P99.
    assert few["p99"] == pytest.approx(0.10 + 2 / 4.605, abs=0.001)
    assert many["p99"] == pytest.approx(0.10 + 0.2 / 4.605, abs=0.001)


def written(tmp_path, document):
    path = tmp_path / "base.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_snapshot_is_read_and_no_file_is_no_baseline(tmp_path):
    run = a_run("base.json", engines=2)
    assert read_baseline(written(tmp_path, run.as_json())) == of_one_engine(run)
    assert read_baseline(None) is None


BENCH = {"output_throughput": 100.0, "completed": 300, "duration": 60.0}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        pytest.param("not JSON", "not JSON (Expecting value: line 1 column 1 (char 0))", id="text"),
        pytest.param("", "not JSON (Expecting value: line 1 column 1 (char 0))", id="empty"),
        pytest.param({"some": "tool"}, "neither a snapshot of kvwatch, nor a result of vllm bench serve or guidellm", id="another tool"),
        pytest.param({"kvwatch_snapshot": 9}, "snapshot version 9; this kvwatch reads version 1", id="another version"),
        pytest.param(BENCH, "not written by kvwatch snapshot, which measures as kvwatch does here", id="a client's result"),
        pytest.param(a_run(engines=1, requests=12.0).as_json(), "the baseline has 12 finished requests; at least 30 are needed", id="few"),
        pytest.param(a_run(engines=1, restarts=1).as_json(), "the server of the baseline was restarted during the run", id="restart"),
    ],
)
def test_a_file_that_is_no_baseline_is_one_clear_line(tmp_path, document, said):
    path = written(tmp_path, document)
    with pytest.raises(ConfigError) as caught:
        read_baseline(path)
    assert caught.value.errors == (f"baseline {path}: {said}",)


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match=r"^baseline .*gone\.json: No such file or directory$"):
        read_baseline(tmp_path / "gone.json")
