"""Recordings that were cut, that are damaged, or whose engines have names no terminal should obey."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random

import pytest
from rich.console import Console

from kvwatch.commands import cli
from kvwatch.incident.recording import Reader
from kvwatch.incident.table import render
from kvwatch.text import printable

HEADER = json.dumps({"kvwatch_recording": 1, "target": "vllm"}) + "\n"


def body(turn, engine="0"):
    labels = f'{{engine="{engine}",model_name="demo-8b"}}'
    numbers = {"num_requests_running": 3, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.5, "generation_tokens_total": 100 * turn}
    return "".join(f"vllm:{name}{labels} {value}\n" for name, value in numbers.items())


def recording(scrapes=60, engine="0"):
    return (HEADER + "".join(json.dumps({"t": 1000.0 + turn, "body": body(turn, engine)}) + "\n" for turn in range(scrapes))).encode()


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_recording_that_was_cut_shows_what_there_is_and_then_says_so(tmp_path, capsys, suffix, pack):
    path = tmp_path / f"cut.jsonl{suffix}"

    noise = random.Random(1)  # noqa: S311 - no secret
    lines = recording().decode().splitlines()[1:]
    noisy = HEADER + "".join(line[:-2] + "# " + "".join(noise.choices("abcdefghij", k=3000)) + '\\n"}\n' for line in lines)
    packed = pack(noisy.encode())
    path.write_bytes(packed[: len(packed) // 2])
    assert cli.main(["replay", str(path)]) == 2
    out, err = capsys.readouterr()
    assert "healthy" in out
    assert "cut short or damaged" in err


@pytest.mark.parametrize("arguments", [["replay", "--format=html", "-o"], ["replay", "--export"], ["snapshot", "-o"]])
def test_a_recording_cut_in_the_middle_of_a_line_is_one_line_exit_2_and_no_file(tmp_path, capsys, arguments):
    path, out = tmp_path / "cut.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(recording()[:-40])
    command, *flags = arguments
    assert cli.main([command, str(path), *flags, str(out)]) == 2
    assert capsys.readouterr().err == f"kvwatch: {path}:61: cut short in the middle of a line\n"
    assert not out.exists()


def test_one_line_that_is_not_utf_8_costs_that_line(tmp_path):
    path, said = tmp_path / "damaged.jsonl", []
    lines = recording().splitlines(keepends=True)
    lines[5] = lines[5].replace(b"demo", b"d\xffmo")
    path.write_bytes(b"".join(lines))
    with Reader(path, said.append) as reader:
        assert len(list(reader)) == 59
    assert said == [f"{path}:6: not UTF-8, skipped"]


@pytest.mark.parametrize("engine", ["[/x]", "[red]0", r"\\x1b[2J", "[link=http://x]"])
def test_what_an_engine_calls_itself_is_no_markup(tmp_path, capsys, engine):
    path = tmp_path / "odd.jsonl"
    path.write_bytes(recording(engine=engine))
    assert cli.main(["replay", str(path)]) == 0
    assert engine.replace("\\\\", "\\") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jx", r"\x1b[2Jx"),
        ("a\rb", r"a\rb"),
        ("\u202eabc", r"\u202eabc"),
        ("\x9b31m", r"\x9b31m"),
        ("größe 模型", "größe 模型"),
    ],
)
def test_a_terminal_is_shown_what_it_would_obey(text, shown):
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_a_table_of_nothing_is_no_fault():
    render(iter(()), Console(file=io.StringIO()))
