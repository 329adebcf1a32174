"""Mutants of the alert engine and the notifier: ``python tests/mutation/mutate_alerts.py [COUNT] [SEED]`` (150 and 1 when not given).

Each mutant changes one operator, number or statement of `kvwatch.alerts` or `kvwatch.exporter.alertmanager` in a copy of the package and
runs their unit tests there, in a forked process that has the libraries already. Printed are the survivors and the share killed;
what survives is explained in `EQUIVALENT`, by the line as it stands, or is a hole in the tests. It takes minutes of one core, so it is no
part of ``make test``.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
MUTATED: Final = ("kvwatch/alerts", "kvwatch/exporter/alertmanager")
TESTS: Final = (
    "tests/alerts/test_alert_state.py",
    "tests/exporter/test_alertmanager_push.py",
    "tests/rules/test_rules.py::test_the_rule_file_is_current",
    "tests/alerts/test_alert_conditions.py",
    "tests/alerts/test_isolation.py",
    "tests/exporter/test_alertmanager_client.py",
    "tests/test_docs.py::test_the_table_of_alerts_is_what_the_alerts_say_of_themselves",
)
SECONDS: Final = 60
"""A mutant that has not ended by then hangs, and is killed."""
EQUIVALENT: Final = {
    "@dataclass(frozen=True, slots=True)": "nobody changes one or gives it a new attribute",
}
"""Source line -> why its change changes nothing that anybody could see."""

Change = Callable[[Any], None]

_COMPARED: Final = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: Final = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


def mutants(tree: ast.Module) -> Iterator[tuple[int, ast.Module]]:
    """Line and tree of every mutant of a module."""
    for place, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            changed = copy.deepcopy(tree)
            target = next(found for number, found in enumerate(ast.walk(changed)) if number == place)
            change(target)
            yield getattr(node, "lineno", 0), ast.fix_missing_locations(changed)


def _changes(node: ast.AST) -> Iterator[Change]:  # noqa: C901 - one case for each kind
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
        case ast.FunctionDef(body=body):
            for index, statement in enumerate(body):
                if isinstance(statement, ast.Assign | ast.AugAssign) or (
                    isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
                ):
                    yield lambda n, at=index: n.body.__setitem__(at, ast.Pass())  # type: ignore[misc]


def _replace_not(node: ast.UnaryOp) -> None:
    node.operand = ast.UnaryOp(ast.Not(), node.operand)


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str)) for side in ast.walk(node)
    )


def _is_type_checking(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def survives(folder: Path) -> bool:
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
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS]))
    finally:
        os._exit(code)


def main(count: int = 150, seed: int = 1) -> int:
    """Try *count* mutants; exit code 1 when fewer than 95 % are killed."""
    for library in ("pydantic_settings", "requests", "structlog", "prometheus_client", "yaml", "jinja2"):
        __import__(library)
    found = [
        (path, line, tree)
        for folder in MUTATED
        for path in sorted((ROOT / folder).glob("*.py"))
        for line, tree in mutants(ast.parse(path.read_text()))
    ]
    sample = random.Random(seed).sample(found, min(count, len(found)))  # noqa: S311 - a sample, not a secret
    survivors = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "copy"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", ".*_cache", "recordings"))
        if not survives(folder):
            sys.exit("the tests fail without any mutant")
        for path, line, tree in sample:
            target = folder / path.relative_to(ROOT)
            target.write_text(ast.unparse(tree))
            if survives(folder):
                source = path.read_text().splitlines()[line - 1].strip()
                survivors.append((path.relative_to(ROOT), line, source))
                print(f"survived: {path.relative_to(ROOT)}:{line}: {source}   {EQUIVALENT.get(source, '')}", flush=True)  # noqa: T201
            target.write_text(path.read_text())
    killed = len(sample) - len(survivors)
    print(f"{killed} of {len(sample)} killed ({killed / len(sample):.1%}); {len(found)} mutants in all")  # noqa: T201
    return 0 if killed >= 0.95 * len(sample) else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
