"""A configuration file may hold anything: what is wrong is told at once, in one line, with exit code 2."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kvwatch.commands import cli

LAUGHS: Final = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + turn)}: &{chr(98 + turn)} [{', '.join([f'*{chr(97 + turn)}'] * 9)}]\n" for turn in range(9)
)
"""Nine aliases of nine aliases, nine times over: a billion of them in 500 bytes."""


def checked(path: Path) -> int:
    return cli.main(["run", "--config.check", f"--config.file={path}"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param("!!bool foo", "a value that cannot be read", id="no boolean"),
        pytest.param("poll: {interval: !!int ''}", "a value that cannot be read", id="no number"),
        pytest.param("poll: {interval: !!timestamp x}", "a value that cannot be read", id="no time"),
        pytest.param("a: !!python/object/apply:os.system [id]", "could not determine a constructor", id="code"),
        pytest.param("[" * 100_000, "", id="nested"),
        pytest.param(LAUGHS, "its aliases make it too large", id="a billion laughs"),
        pytest.param("a: &a [*a]", "an alias stands for something it is part of", id="an alias of itself"),
        pytest.param("\ufeff\x00\x01", "not allowed", id="control characters"),
        pytest.param("log: {level: '\\e[31m\\n\\0'}", "log.level", id="terminal escapes"),
        pytest.param("#" * 2_000_000, "larger than 1024 KiB", id="large"),
    ],
)
def test_what_cannot_be_used_is_one_line_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: Callable[[Callable[[], object]], float], content: str, said: str
) -> None:
    path, codes = tmp_path / "kvwatch.yaml", []
    path.write_text(content)
    assert seconds(lambda: codes.append(checked(path))) < 20.0
    (line,) = capsys.readouterr().err.splitlines()
    assert codes == [2]
    assert said in line
    assert line.isprintable()


def test_a_fifo_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: Callable[[Callable[[], object]], float]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert seconds(lambda: checked(tmp_path / "fifo")) < 20.0
    assert capsys.readouterr().err.endswith("fifo: not a regular file\n")


def test_merge_keys_are_read(tmp_path: Path) -> None:
    (tmp_path / "kvwatch.yaml").write_text(
        "targets:\n- &a {url: http://a:8000/metrics, labels: {pool: one}}\n- {<<: *a, url: http://b:8000/metrics}\n"
    )
    assert checked(tmp_path / "kvwatch.yaml") == 0
