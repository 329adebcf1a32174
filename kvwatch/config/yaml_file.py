"""YAML files as kvwatch reads them: one error in one line for whatever is in them, within a second.

Of YAML's traps a key that stands twice is refused (the second would win silently), aliases may not multiply the document, and a file must
be a regular one of bounded size: reading a FIFO would never end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Final

import yaml

from kvwatch.text import one_line

MOST_BYTES: Final = 1024 * 1024
"""A thousand targets with labels are 100 KiB."""
_LONGEST_PROBLEM: Final = 200
_MOST_NODES: Final = 100_000
"""Of the document with its aliases written out; a file of the greatest size without aliases has about as many."""
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser is ten times as fast; it is in every wheel of PyYAML."""


class _Loader(_Base):  # type: ignore[misc]  # chosen at run time
    """A safe loader that refuses what is described above."""

    def construct_document(self, node: yaml.Node) -> Any:
        if _size(node, {}) > _MOST_NODES:
            raise _refused("its aliases make it too large", node)
        return super().construct_document(node)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Nodes of the document below *node*, each alias counted as what it stands for; every mapping is looked at once."""
    if id(node) in known:
        if known[id(node)] < 0:
            raise _refused("an alias stands for something it is part of", node)
        return known[id(node)]
    known[id(node)] = -1
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
        parts = [part for pair in node.value for part in pair]
    else:
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
    known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _refused("a key must be a word", key)
        if (key.tag, key.value) in seen:
            raise _refused(f"the key {key.value!r} stands twice", key)
        seen.add((key.tag, key.value))


def _refused(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a regular file. Raises `ValueError` with one line, without the path, for a file that cannot be used."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # or a FIFO is waited for
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor is no path
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("not a regular file")
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    if len(content) > most_bytes:
        raise ValueError(f"larger than {most_bytes // 1024} KiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error


class YamlError(ValueError):
    """A text that is not YAML, or not as kvwatch takes it; one line."""

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.line = line
        """Counted from 1; ``None`` where nobody knows."""


def parse_yaml(text: str) -> Any:
    """What the text says. Raises `YamlError`."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a safe loader
    except RecursionError as error:
        raise YamlError("nested too deeply", None) from error
    except Exception as error:  # PyYAML lets through whatever its constructors meet: KeyError, IndexError, AttributeError, OverflowError
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or f"a value that cannot be read ({error})"
        raise YamlError(one_line(problem)[:_LONGEST_PROBLEM], mark.line + 1 if mark else None) from error
