"""Where the knee of a ladder is."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from some_runs import a_run

from kvwatch.runs.ladder import ladder
from kvwatch.runs.plot import ladder_as_svg


def rungs(*rows):
    return [a_run(f"{seqs}.json", rate=rate, ttft=ttft, max_num_seqs=seqs) for seqs, rate, ttft in rows]


@pytest.mark.parametrize(
    ("rows", "knee"),
    [
        pytest.param([(4, 50.0, 9.0), (8, 90.0, 5.0), (16, 100.0, 3.0), (64, 60.0, 4.0)], 16, id="the top of a hill"),
        pytest.param([(8, 97.0, 4.0), (16, 100.0, 3.0), (32, 99.0, 2.0), (64, 80.0, 2.0)], 32, id="of three alike the shortest wait"),
        pytest.param([(4, 100.0, 2.0), (8, 100.0, 2.0), (64, 50.0, 2.0)], 4, id="of equal ones the lowest"),
        pytest.param([(13, 100.0, 3.2), (16, 99.0, 3.0), (64, 97.0, 2.95)], 13, id="of waits within a tenth the lowest"),
        pytest.param([(13, 100.0, 3.3), (16, 99.0, 3.0), (64, 97.0, 2.9)], 16, id="not beyond a tenth"),
        pytest.param([(64, 60.0, 4.0), (10, 100.0, 3.0), (4, 50.0, 9.0)], 10, id="in whatever order they come"),
    ],
)
def test_the_knee_is_where_throughput_is_near_its_best_and_the_wait_is_short(rows, knee):
    found = ladder(rungs(*rows))
    assert found.axis.name == "max_num_seqs"
    assert found.axis.read(found.rungs[found.knee]) == knee
    assert found.verdict.startswith(f"the knee is at --max-num-seqs {knee}: ")


def test_several_runs_of_a_rung_are_one_with_their_means_and_how_far_they_lie_apart():
    found = ladder(rungs((8, 100.0, 2.0), (16, 90.0, 4.0), (8, 80.0, 1.0), (16, 81.0, None)))
    assert [found.axis.read(run) for run in found.rungs] == [8, 16]
    assert [run.lines.generated_tokens_per_second for run in found.rungs] == [90.0, 85.5]
    assert [run.lines.time_to_first_token.p95 for run in found.rungs] == [1.5, None]
    assert found.rungs[0].source == "8.json + 8.json"
    assert found.verdict.endswith("; runs of one rung differ by up to 25 % in throughput")


def test_what_is_declared_must_be_equal_and_what_is_measured_nearly_to_be_one_rung():
    assert len(ladder(rungs((100, 10.0, 1.0), (102, 11.0, 1.0), (200, 12.0, 1.0))).rungs) == 3
    assert len(ladder([a_run(concurrency=n) for n in (31.4, 32.6, 64.0)]).rungs) == 2


def test_runs_of_one_server_are_ordered_by_their_concurrency():
    found = ladder([a_run(concurrency=float(n), rate=rate) for n, rate in ((32, 100.0), (8, 40.0), (128, 90.0))])
    assert found.axis.name == "concurrency"
    assert [run.conditions.concurrency for run in found.rungs] == [8.0, 32.0, 128.0]
    assert found.knee == 1


def test_over_prompt_length_it_says_where_throughput_breaks():
    runs = [a_run(rate=rate, mean_prompt_tokens=length) for length, rate in ((500.0, 100.0), (2000.0, 98.0), (8000.0, 40.0))]
    assert ladder(runs, "prompt").verdict == "throughput breaks between prompts of 2 000 and 8 000 tokens"
    assert ladder(runs[:2], "prompt").verdict == "throughput holds up to the longest prompts measured, 2 000 tokens"


@pytest.mark.parametrize(
    ("runs", "by", "why"),
    [
        ([a_run(), a_run()], None, "differ in neither"),
        ([a_run(), a_run()], "max_num_seqs", "not every run says its --max-num-seqs"),
        (rungs((4, None, 1.0), (8, 90.0, 1.0)), None, r"no throughput is known of 4\.json"),
    ],
)
def test_what_is_no_ladder_is_refused_with_the_reason(runs, by, why):
    with pytest.raises(ValueError, match=why):
        ladder(runs, by)


def test_the_picture_is_a_svg_of_its_own_with_every_rung_and_the_knee():
    picture = ET.fromstring(ladder_as_svg(ladder(rungs((4, 50.0, 9.0), (8, 90.0, 5.0), (16, 100.0, 3.0)))))  # noqa: S314 - our own
    names = [element.tag.rpartition("}")[2] for element in picture.iter()]
    assert (names.count("polyline"), names.count("circle")) == (3, 9)
    assert "16 (knee)" in [element.text for element in picture.iter()]
    assert not [element for element in picture.iter() if "href" in str(element.attrib)]


def test_what_no_run_knows_is_not_drawn():
    runs = [replace(run, lines=replace(run.lines, preemption_ratio=None)) for run in rungs((4, 50.0, 9.0), (8, 90.0, 5.0))]
    assert "preempted (" not in ladder_as_svg(ladder(runs))


def test_without_a_wait_there_is_no_picture():
    with pytest.raises(ValueError, match="nothing to draw"):
        ladder_as_svg(ladder(rungs((4, 50.0, None), (8, 90.0, 5.0))))
