"""What the scripts beside this one share: mutants of some packages, tried against their unit tests.

Each mutant changes one operator, number or statement in a copy of the project and runs the tests there, in a forked process that has the
libraries already. Printed are the survivors and the share killed, and on standard error how far it is; what survives is explained by its
line as it stands, or is a hole in the tests. It takes minutes of one core, so it is no part of ``make test``.

Arguments: how many mutants, the seed of the sample, and texts: then only mutants of lines that contain one of them (a line starts with the
name of its file and a colon here), which is how survivors are tried again after a test was written.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 180
"""A mutant that has not ended by then hangs, and is killed. Six times what all the tests take, for a busy machine must kill none."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is mutated and what must notice."""

    packages: tuple[str, ...]
    tests: tuple[str, ...]
    """Arguments of pytest, fast ones first: the first failure ends a run."""
    bar: float
    """The least share killed."""
    equivalent: Mapping[str, str]
    """Source line -> why its change changes nothing that anybody could see."""


Change = Callable[[Any], None]

_COMPARED: Final = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: Final = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


def mutants(tree: ast.Module) -> Iterator[tuple[int, Callable[[], tuple[str, str]]]]:
    """The line of every mutant of a module, and what makes its source and says what was changed into what."""
    slots = {id(keyword.value) for keyword in ast.walk(tree) if isinstance(keyword, ast.keyword) and keyword.arg == "slots"}
    for place, node in enumerate(ast.walk(tree)):
        # Without slots a class does the same and takes more room: no test of behaviour can tell.
        for change in () if id(node) in slots else _changes(node):
            yield getattr(node, "lineno", 0), partial(_source_of, tree, place, change)
        for index, statement in enumerate(node.body if isinstance(node, ast.FunctionDef) else ()):
            if isinstance(statement, ast.Assign | ast.AugAssign) or (
                isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            ):
                yield statement.lineno, partial(_source_of, tree, place, partial(_leave_out, index))


def _source_of(tree: ast.Module, place: int, change: Change) -> tuple[str, str]:
    changed = copy.deepcopy(tree)
    target = next(found for number, found in enumerate(ast.walk(changed)) if number == place)
    change(target)
    said = "left out" if isinstance(target, ast.FunctionDef) else ast.unparse(target).splitlines()[0]
    return ast.unparse(ast.fix_missing_locations(changed)), said


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            yield lambda n: setattr(n, "ops", [_COMPARED[type(n.ops[0])]()])
        case ast.BoolOp():
            yield lambda n: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield _replace_not
        case ast.BinOp(op=op) if type(op) in _COMPUTED and not _is_text(node):
            yield lambda n: setattr(n, "op", _COMPUTED[type(n.op)]())
        case ast.Constant(value=bool()):
            yield lambda n: setattr(n, "value", not n.value)
        case ast.Constant(value=int() | float()):
            yield lambda n: setattr(n, "value", n.value + 1)
        case ast.IfExp():
            yield lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
        case ast.If() if not _is_type_checking(node):
            yield lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))


def _leave_out(index: int, node: ast.FunctionDef) -> None:
    node.body[index] = ast.Pass()


def _replace_not(node: ast.UnaryOp) -> None:
    node.operand = ast.UnaryOp(ast.Not(), node.operand)


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str)) for side in ast.walk(node)
    )


def _is_type_checking(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def survives(folder: Path, tests: tuple[str, ...]) -> bool:
    """Whether the tests pass in *folder*, asked in a process of its own."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status) == 0
    signal.alarm(SECONDS)
    os.chdir(folder)
    sys.path[:0] = [str(folder)]
    code = 1
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
    finally:
        os._exit(code)


def run(target: Target, arguments: Sequence[str], default_count: int) -> int:
    """Try a sample of mutants; exit code 1 when fewer than the target's bar are killed."""
    count, seed, *texts = [*arguments, *(str(default_count), "1")[len(arguments) :]]
    for library in ("pydantic_settings", "requests", "structlog", "prometheus_client", "yaml", "jinja2"):
        __import__(library)
    survivors = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "copy"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", ".*_cache", "recordings"))
        found = [
            (path, line, mutant)
            for package in target.packages
            for path in sorted((folder / package).rglob("*.py"))
            for line, mutant in mutants(ast.parse(path.read_text()))
            if not texts or any(text in f"{path.name}: {path.read_text().splitlines()[line - 1]}" for text in texts)
        ]
        sample = random.Random(int(seed)).sample(found, min(int(count), len(found)))  # noqa: S311 - a sample, not a secret
        if not survives(folder, target.tests):
            sys.exit("the tests fail without any mutant")
        for number, (path, line, mutant) in enumerate(sample, 1):
            source = path.read_text()
            mutated, change = mutant()
            path.write_text(mutated)
            if survives(folder, target.tests):
                survivors += 1
                text = source.splitlines()[line - 1].strip()
                print(f"survived: {path.relative_to(folder)}:{line}: {text} -> {change}   {target.equivalent.get(text, '')}", flush=True)  # noqa: T201
            path.write_text(source)
            shutil.rmtree(folder / ".hypothesis", ignore_errors=True)  # what failed for one mutant is not tried on the next
            if number % 10 == 0:
                print(f"{number} of {len(sample)} tried, {survivors} survived", file=sys.stderr, flush=True)  # noqa: T201
        if not survives(folder, target.tests):
            sys.exit("the tests fail without any mutant, now and then: the figures mean nothing")
    killed = len(sample) - survivors
    print(f"{killed} of {len(sample)} killed ({killed / len(sample):.1%}); {len(found)} mutants in all")  # noqa: T201
    return 0 if killed >= target.bar * len(sample) else 1
