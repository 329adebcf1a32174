"""Recordings written and read, whole and damaged."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import os
import resource
from pathlib import Path

import pytest
from playing import decimated

from kvwatch.errors import RecordingError
from kvwatch.incident.recording import Decimator, Entry, Reader, Writer

HEADER = '{"kvwatch_recording": 1, "target": "http://demo:8000/metrics"}'
PACKERS = {"plain": (".jsonl", bytes), "gzip": (".jsonl.gz", gzip.compress), "xz": (".jsonl.xz", lzma.compress)}
FORMS = [pytest.param(*how, id=name) for name, how in PACKERS.items()]


@pytest.fixture
def read(tmp_path):
    """Entries and complaints of a recording with these lines after its header."""

    def entries(*lines, header=HEADER):
        path = tmp_path / "read.jsonl"
        path.write_text("\n".join((header, *lines)) + "\n")
        complaints = []
        with Reader(path, complaints.append) as reader:
            found = list(reader)
        return found, [complaint.removeprefix(f"{path}:") for complaint in complaints]

    return entries


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
def test_what_was_written_is_read(tmp_path, suffix):
    path = tmp_path / f"storm{suffix}"
    body = 'a{b="ü \\"quoted\\""} 1\n# 日本\n'
    with Writer(path, "http://demo:8000/metrics") as writer:
        writer.body(1_700_000_000.12345, body)
        writer.error(1_700_000_001.0, "timeout: no whole answer within 4 s")
        writer.body(1_700_000_002.0, "")
    with Reader(path, pytest.fail) as reader:
        assert reader.target == "http://demo:8000/metrics"
        assert list(reader) == [
            Entry(1_700_000_000.123, body.encode(), None),
            Entry(1_700_000_001.0, None, "timeout: no whole answer within 4 s"),
            Entry(1_700_000_002.0, b"", None),
        ]


@pytest.mark.parametrize(("suffix", "pack"), FORMS)
def test_the_suffix_says_how_a_file_is_packed(tmp_path, suffix, pack):
    path = tmp_path / f"storm{suffix}"
    path.write_bytes(pack(f'{HEADER}\n{{"t": 1, "body": "x 1"}}\n'.encode()))
    with Reader(path, pytest.fail) as reader:
        assert list(reader) == [Entry(1.0, b"x 1", None)]
        assert reader.position() == reader.size


def test_a_crash_loses_at_most_the_scrape_being_written(tmp_path):
    for suffix in (".jsonl", ".jsonl.gz"):
        path = tmp_path / f"crash{suffix}"
        with Writer(path, "demo") as writer:
            writer.body(1.0, "x 1")
            so_far = path.read_bytes()
        (tmp_path / f"copy{suffix}").write_bytes(so_far)
        with Reader(tmp_path / f"copy{suffix}", pytest.fail) as reader:
            entries = iter(reader)
            assert next(entries) == Entry(1.0, b"x 1", None)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        pytest.param("{", "not JSON", id="not-json"),
        pytest.param("[" * 100_000, "not JSON", id="nested-without-end"),
        pytest.param("[1]", 'no scrape: "t" (unix seconds) is missing', id="list"),
        pytest.param("{}", 'no scrape: "t" (unix seconds) is missing', id="empty"),
        pytest.param('{"t": "2", "body": "x"}', 'no scrape: "t" (unix seconds) is missing', id="time-as-text"),
        pytest.param('{"t": true, "body": "x"}', 'no scrape: "t" (unix seconds) is missing', id="time-true"),
        pytest.param('{"t": NaN, "body": "x"}', 'no scrape: "t" (unix seconds) is missing', id="time-nan"),
        pytest.param('{"t": 1e999, "body": "x"}', 'no scrape: "t" (unix seconds) is missing', id="time-infinite"),
        pytest.param('{"t": 2}', 'no scrape: neither "body" nor "error" is text', id="no-body"),
        pytest.param('{"t": 2, "body": 5}', 'no scrape: neither "body" nor "error" is text', id="body-a-number"),
        pytest.param('{"t": 2, "body": "\\ud800"}', "not UTF-8", id="half-a-character"),
        pytest.param('{"t": 0.5, "body": "x"}', "time goes back from 1.0 to 0.5", id="time-goes-back"),
    ],
)
def test_a_broken_line_is_reported_with_its_number_and_skipped(read, line, complaint):
    found, complaints = read('{"t": 1, "body": "a"}', line, '{"t": 3, "body": "b"}')
    assert [entry.body for entry in found] == [b"a", b"b"]
    assert len(complaints) == 1
    assert complaints[0].startswith(f"3: {complaint}")
    assert complaints[0].endswith(", skipped")


def test_blank_lines_are_nothing(read):
    assert read('{"t": 1, "body": "a"}', "", "   ", '{"t": 2, "body": "b"}') == (
        [Entry(1.0, b"a", None), Entry(2.0, b"b", None)],
        [],
    )


def test_two_scrapes_of_one_moment_are_two(read):
    assert [entry.body for entry in read('{"t": 1, "body": "a"}', '{"t": 1, "body": "b"}')[0]] == [b"a", b"b"]


def test_a_last_line_without_its_end_is_a_recording_cut_short_and_what_came_before_is_given(tmp_path):
    path = tmp_path / "cut.jsonl"
    path.write_text(f'{HEADER}\n{{"t": 1, "body": "a"}}\n{{"t": 2, "bo')
    with Reader(path, pytest.fail) as reader:
        entries = iter(reader)
        assert next(entries).t == 1.0
        with pytest.raises(RecordingError, match=r"cut\.jsonl:3: cut short in the middle of a line$"):
            next(entries)


def test_a_last_line_that_only_lacks_its_line_break_is_whole(tmp_path):
    path = tmp_path / "whole.jsonl"
    path.write_text(f'{HEADER}\n{{"t": 1, "body": "a"}}')
    with Reader(path, pytest.fail) as reader:
        assert [entry.t for entry in reader] == [1.0]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        pytest.param(b"", "not a kvwatch recording", id="empty"),
        pytest.param(b"# TYPE x gauge\nx 1\n", "not a kvwatch recording", id="exposition"),
        pytest.param(b'{"t": 1, "body": ""}\n', "not a kvwatch recording", id="no-header"),
        pytest.param(b"[1]\n", "not a kvwatch recording", id="list"),
        pytest.param(b"[" * 100_000 + b"\n", "not a kvwatch recording", id="nested-without-end"),
        pytest.param(b'{"kvwatch_recording": 2}\n', "recording version 2; this kvwatch reads version 1", id="newer"),
        pytest.param(b'{"kvwatch_recording": "1"}\n', "recording version '1'; this kvwatch reads version 1", id="version-as-text"),
        pytest.param(b"\xff\xfe\x00", "not a kvwatch recording", id="binary"),
    ],
)
def test_what_is_no_recording(tmp_path, content, fault):
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=fault) as caught:
        Reader(path, pytest.fail)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "fault"), [pytest.param("nowhere.jsonl", "No such file", id="missing"), pytest.param(".", "Is a directory", id="directory")]
)
def test_what_cannot_be_opened(tmp_path, name, fault):
    with pytest.raises(RecordingError, match=fault):
        Reader(tmp_path / name, pytest.fail)


def packed(pack):
    """A packed recording of many scrapes."""
    lines = [HEADER, *(json.dumps({"t": n, "body": os.urandom(200).hex()}) for n in range(500))]
    return pack("\n".join(lines).encode() + b"\n")


@pytest.mark.parametrize(("suffix", "pack"), FORMS[1:])
def test_a_packed_file_cut_short_gives_what_came_before(tmp_path, suffix, pack):
    path = tmp_path / f"cut{suffix}"
    whole = packed(pack)
    path.write_bytes(whole[: len(whole) // 2])
    found = []

    def read_all():
        with Reader(path, pytest.fail) as reader:
            found.extend(reader)

    with pytest.raises(RecordingError, match="cut short or damaged"):
        read_all()
    assert len(found) > 50
    assert [entry.t for entry in found] == list(range(len(found)))


@pytest.mark.parametrize(("suffix", "pack"), FORMS[1:])
def test_a_damaged_packed_file_is_one_error(tmp_path, suffix, pack):
    path = tmp_path / f"damaged{suffix}"
    whole = bytearray(packed(pack))
    whole[len(whole) // 2 : len(whole) // 2 + 64] = bytes(64)
    path.write_bytes(whole)

    def read_all():
        with Reader(path, lambda _: None) as reader:
            list(reader)

    with pytest.raises(RecordingError, match="cut short or damaged"):
        read_all()


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.xz"])
def test_a_plain_file_called_packed_is_one_error(tmp_path, suffix):
    path = tmp_path / f"plain{suffix}"
    path.write_text(HEADER)
    with pytest.raises(RecordingError, match="cut short or damaged"):
        Reader(path, pytest.fail)


def test_a_recording_is_never_overwritten(tmp_path):
    path = tmp_path / "storm.jsonl"
    path.write_text("precious")
    with pytest.raises(RecordingError, match="exists already"):
        Writer(path, "demo")
    assert path.read_text() == "precious"


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(RecordingError, match="No such file or directory"):
        Writer(tmp_path / "nowhere" / "storm.jsonl", "demo")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_full_disk_is_one_error(tmp_path, suffix):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    path = tmp_path / f"full{suffix}"
    writer = Writer(path, "demo")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._raw.fileno())
    os.close(full)
    with pytest.raises(RecordingError, match="No space left on device") as caught, writer:
        writer.body(1.0, os.urandom(100_000).hex())
    assert str(caught.value) == f"{path}: No space left on device"


@pytest.mark.parametrize("most", [0, 10, 30, 60, 100, 1_000, 5_000, 12_345, 400_000])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
def test_a_disk_that_fills_up_leaves_whole_scrapes_or_no_file(tmp_path, suffix, most):
    """A file may grow to so many bytes here. What could not be written whole is not there; xz keeps its last blocks to itself."""
    path, written, found = tmp_path / f"full{suffix}", [], []

    def write_on():
        with Writer(path, "demo") as writer:
            for t in range(1000):
                body = os.urandom(1000).hex()
                writer.body(t, body)
                written.append(body.encode())

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(RecordingError) as caught:
            write_on()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(caught.value) == f"{path}: File too large"
    if path.exists():
        with Reader(path, pytest.fail) as reader, contextlib.suppress(RecordingError) if suffix != ".jsonl" else contextlib.nullcontext():
            found.extend(entry.body for entry in reader)
    assert found == (written[: len(found)] if suffix == ".jsonl.xz" else written)
    assert path.exists() == {".jsonl": most >= 60, ".jsonl.gz": most >= 100, ".jsonl.xz": bool(found)}[suffix]
    assert bool(found) == (most >= (150_000 if suffix == ".jsonl.xz" else 5_000))


@pytest.mark.parametrize(
    ("times", "interval", "kept"),
    [
        pytest.param([0, 1, 2, 3, 4, 5, 6, 10], 5.0, [0, 5, 10], id="every-fifth"),
        pytest.param([0, 1.001, 2.002, 3.003], 1.0, [0, 1.001, 2.002, 3.003], id="a-recorder-that-drifts"),
        pytest.param([0, 0.9995, 2], 1.0, [0, 0.9995, 2], id="a-hair-early"),
        pytest.param([0, 1, 30, 31, 35], 5.0, [0, 30, 35], id="beat-begins-anew-after-a-gap"),
        pytest.param([0, 6, 10, 16, 20], 5.0, [0, 6, 10, 16, 20], id="keeps-the-beat-when-late"),
        pytest.param([7], 5.0, [7], id="one"),
        pytest.param([], 5.0, [], id="none"),
    ],
)
def test_decimation(times, interval, kept):
    assert [entry.t for entry in decimated(iter([Entry(t, b"", None) for t in times]), interval)] == kept
    decimator = Decimator(interval)
    assert [t for t in times if decimator.wants(t)] == kept
