from __future__ import annotations

from random import Random
from statistics import median

import pytest
from recorded_load import Phase, parse_phase

from kvwatch.errors import UsageError
from kvwatch.simulator.load import (
    IDLE,
    Arrival,
    ClosedLoop,
    Fixed,
    LogNormal,
    OpenLoop,
    Uniform,
    parse_arrivals,
    parse_lengths,
    read_arrivals,
)


@pytest.mark.parametrize(
    ("spec", "lengths"),
    [
        pytest.param("300", Fixed(300), id="bare number"),
        pytest.param("fixed:300", Fixed(300), id="fixed"),
        pytest.param("uniform:20,60", Uniform(20, 60), id="uniform"),
        pytest.param("logn:250,0.6,16,1500", LogNormal(250.0, 0.6, 16, 1500), id="lognormal"),
        pytest.param(["logn", 250, 0.6, 16, 1500], LogNormal(250.0, 0.6, 16, 1500), id="as a recording writes it"),
        pytest.param(["fixed", 12], Fixed(12), id="fixed in a recording"),
    ],
)
def test_lengths_are_read_as_flags_and_as_headers_write_them(spec, lengths):
    assert parse_lengths(spec) == lengths


@pytest.mark.parametrize(
    "spec", ["", "zero", "0", "-3", "uniform:9", "uniform:9,3", "logn:0,1,1,5", "logn:5,-1,1,5", "gamma:1,2", [], 7, "inf", "nan"]
)
def test_lengths_that_are_none_are_named(spec):
    with pytest.raises(UsageError, match="are no lengths"):
        parse_lengths(spec)


def test_lengths_are_drawn_from_where_they_should_be():
    random = Random(1)  # noqa: S311 - repeatable
    uniform = [Uniform(3, 5).draw(random) for _ in range(300)]
    assert set(uniform) == {3, 4, 5}
    lognormal = [LogNormal(250, 0.6, 100, 900).draw(random) for _ in range(4000)]
    assert (min(lognormal), max(lognormal)) == (100, 900)
    assert 235 <= median(lognormal) <= 265


@pytest.mark.parametrize(
    ("entry", "phase"),
    [
        pytest.param({"s": 30, "rate": 0}, Phase(30, IDLE), id="pause"),
        pytest.param(
            {"s": 9, "rate": 5, "prompt": ["fixed", 3], "output": ["fixed", 2]}, Phase(9, OpenLoop(5, Fixed(3), Fixed(2))), id="open"
        ),
        pytest.param(
            {"s": 9, "rate": 0.07, "burst": 12, "prompt": ["fixed", 3], "output": ["fixed", 2]},
            Phase(9, OpenLoop(0.07, Fixed(3), Fixed(2), burst=12)),
            id="bursts",
        ),
        pytest.param(
            {"s": 9, "concurrency": 24, "prompt": ["fixed", 3], "output": ["fixed", 2]},
            Phase(9, ClosedLoop(24, Fixed(3), Fixed(2))),
            id="closed",
        ),
    ],
)
def test_phases_are_read_as_recordings_write_them(entry, phase):
    assert parse_phase(entry) == phase


def rows(text: str) -> list[list[str]]:
    return [line.split(",") for line in text.splitlines()]


def test_arrivals_are_sorted_and_start_at_zero():
    arrivals = parse_arrivals(rows("timestamp,prompt_tokens,output_tokens\n1700000002.5,30,4\n\n1700000000.0,10,2\n"), source="x.csv")
    assert arrivals.rows == (Arrival(0.0, 10, 2), Arrival(2.5, 30, 4))


def test_bad_arrivals_are_reported_with_their_lines():
    with pytest.raises(UsageError) as error:
        parse_arrivals(rows("0,1,1\nsoon,1,1\n1,2\n2,0,5\nnan,1,1\n3,4,5"), source="x.csv")
    assert str(error.value) == (
        "x.csv: line 2: 'soon,1,1' is not a time in seconds and two whole numbers of tokens; "
        "line 3: 2 columns instead of timestamp,prompt_tokens,output_tokens; "
        "line 4: 0 prompt and 5 output tokens: both must be at least 1; line 5: 'nan' is not a time"
    )


def test_many_bad_arrivals_are_one_line_with_a_count():
    with pytest.raises(UsageError, match=r"line 5: .*; and 4 more bad lines$"):
        parse_arrivals(rows("\n".join(["0,1"] * 9)), source="x.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot read arrivals from", id="missing file"),
        pytest.param(b"", "no arrivals in it", id="empty file"),
        pytest.param(b"\xff\xfe\x00", "cannot read arrivals from", id="not text"),
    ],
)
def test_file_that_is_no_list_of_arrivals_is_one_error(tmp_path, content, message):
    path = tmp_path / "arrivals.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_arrivals(path)
