"""README and docs, and the commands they tell people to type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROGRAM = re.compile(r"(?:/opt/\S+|curl|docker|helm|install|journalctl|kubectl|kvwatch|make|pip|python3?|systemctl|vllm) ")
REPOSITORY = Path(__file__).resolve().parent.parent


def pages_for_people() -> dict[str, str]:
    """Every page for people, by its path in the repository."""
    pages = [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").glob("*.md"),
        *(REPOSITORY / "deploy").rglob("*.md"),
        REPOSITORY / "rules" / "RUNBOOK.md",
        REPOSITORY / "kvwatch" / "simulator" / "README.md",
    ]
    return {path.relative_to(REPOSITORY).as_posix(): path.read_text("utf-8") for path in sorted(pages)}


def shell_lines(text: str) -> Iterator[str]:
    """Every line to type in a fenced block of a shell, its continuations joined, without its comment."""
    for language, block in re.findall(r"^ *```([a-z]*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        if language not in ("", "sh"):
            continue
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if PROGRAM.match(line.removeprefix("$ ")):
                yield re.split(r"\s#\s", line.removeprefix("$ "))[0].strip()


def command_lines(text: str) -> Iterator[str]:
    """What those of kvwatch hand to it: without what a shell does with the output."""
    for line in shell_lines(text):
        if line.startswith("kvwatch "):
            yield re.split(r"\s[|&>]|&&", line.removeprefix("kvwatch "))[0].strip()


def commands_said(text: str) -> list[str]:
    """The same in running text: ``kvwatch COMMAND --flag``, inside one pair of backticks."""
    return [found for found in re.findall(r"`kvwatch ([a-z][^`\n]*)`", text) if not found.endswith("…")]
