"""``kvwatch compare``: a candidate against its base, line by line; or, with three runs and more, a ladder and its knee."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType

from kvwatch.errors import UsageError
from kvwatch.runs.compare import LINES, TOLERANCES, compare
from kvwatch.runs.formats import read_runs
from kvwatch.runs.ladder import AXES, ladder
from kvwatch.runs.plot import ladder_as_svg
from kvwatch.runs.render import (
    comparison_as_json,
    comparison_as_markdown,
    ladder_as_json,
    ladder_as_markdown,
    render_comparison,
    render_ladder,
)
from kvwatch.runs.run import Run

REGRESSED: Final = 1
NOT_COMPARED: Final = 3
_PAIR: Final = 2
DESCRIPTION: Final = "Compares two runs line by line, or finds the knee of three and more."
EPILOG: Final = """\
Files are snapshots of kvwatch, results of `vllm bench serve --save-result`, or reports of guidellm (JSON).

exit codes of a comparison: 0 no line regressed, 1 one did, 2 an error, 3 not compared (other loads, too few requests, a restart)

examples:
  kvwatch compare base.json candidate.json
  kvwatch compare base.json candidate.json --tolerance ttft=20% --format md
  kvwatch compare seqs4.json seqs8.json seqs16.json --svg ladder.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvwatch compare``."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="two files: base and candidate; more: a ladder")
    parser.add_argument("--format", choices=("text", "md", "json"), default="text")
    names = ", ".join(f"{line.name} ({line.tolerance:.0%})".replace("%", "%%") for line in LINES)
    parser.add_argument(
        "--tolerance", action="append", default=[], metavar="LINE=SHARE", help=f"how much worse a line may be, such as ttft=10%%: {names}"
    )
    parser.add_argument("--ladder", action="store_true", help="treat two files as a ladder too")
    parser.add_argument("--by", choices=[axis.name for axis in AXES], help="what the rungs differ in (default: found out)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the ladder")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, and return the exit code. Raises `UsageError`."""
    runs = [found for path in arguments.files for found in read_runs(path)]
    if len(runs) < _PAIR:
        raise UsageError("compare needs at least two runs")
    if len(runs) > _PAIR or arguments.ladder or arguments.by or arguments.svg:
        return _ladder(arguments, runs)
    found = compare(runs[0], runs[1], tolerances(arguments.tolerance))
    _print(arguments.format, render_comparison(found), comparison_as_markdown(found), comparison_as_json(found))
    return NOT_COMPARED if found.refusals else REGRESSED if found.regressed else 0


def _ladder(arguments: argparse.Namespace, runs: Sequence[Run]) -> int:
    if arguments.tolerance:
        raise UsageError("--tolerance belongs to a comparison of two runs")
    try:
        found = ladder(runs, arguments.by)
        if arguments.svg is not None:
            arguments.svg.write_text(ladder_as_svg(found), encoding="utf-8")
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{arguments.svg}: {error.strerror or error}") from error
    _print(arguments.format, render_ladder(found), ladder_as_markdown(found), ladder_as_json(found))
    return 0


def tolerances(given: Sequence[str]) -> Mapping[str, float]:
    """The tolerances with those *given* as ``line=10%`` or ``line=0.1`` in place of the usual ones. Raises `UsageError`."""
    found = dict(TOLERANCES)
    for text in given:
        name, equals, value = text.partition("=")
        if name not in found:
            raise UsageError(f"--tolerance {text}: there is no line {name!r}; there are {', '.join(found)}")
        try:
            share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not equals or not 0 <= share < float("inf"):
            raise UsageError(f"--tolerance {text}: write {name}=10%")
        found[name] = share
    return found


def _print(form: str, text: RenderableType, markdown: str, document: str) -> None:
    if form == "text":
        Console().print(text)
    else:
        sys.stdout.write(markdown if form == "md" else document + "\n")
