"""A plan for a person's terminal, for a pipe, and for a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvwatch.plan.options import Option
from kvwatch.plan.plan import Plan
from kvwatch.plan.sizes import format_size
from kvwatch.text import number

_Cell = Callable[[Option], str | None]


def _size(value: int | None) -> str | None:
    return None if value is None else format_size(value)


def _count(value: int | None) -> str | None:
    return None if value is None else number(value)


ROWS: Final[tuple[tuple[str, _Cell], ...]] = (
    ("longest (tokens)", lambda o: _count(o.max_model_len)),
    ("KV per token", lambda o: _size(o.bytes_per_token)),
    ("KV per longest", lambda o: _size(o.bytes_per_sequence)),
    ("weights", lambda o: _size(o.weights)),
    ("memory for KV", lambda o: _size(o.kv_memory)),
    ("pool (tokens)", lambda o: _count(o.pool_tokens) or (o.pool_tokens_at_most and f"≤ {_count(o.pool_tokens_at_most)}") or None),
    ("longest that fit", lambda o: _count(o.full_sequences)),
    ("  20 % headroom", lambda o: _count(o.full_safe)),
    ("typical that fit", lambda o: _count(o.typical_sequences)),
    ("  20 % headroom", lambda o: _count(o.typical_safe)),
)
"""Sizes are those of one GPU."""


def cells(plan: Plan) -> list[tuple[str, list[str]]]:
    """The rows that say something for any column; a cell without a number is a dash."""
    found = [(label, [cell(option) or "-" for option in plan.options]) for label, cell in ROWS]
    return [(label, row) for label, row in found if set(row) != {"-"}]


def length_cells(plan: Plan) -> list[tuple[str, list[str]]]:
    """How many requests of which length fit, for each column; lengths are tokens of prompt and output."""
    lengths = sorted({fit.tokens for option in plan.options for fit in option.lengths})
    found = []
    for tokens in lengths:
        fits = [next((fit.sequences for fit in option.lengths if fit.tokens == tokens), None) for option in plan.options]
        found.append((f"{number(tokens)} tokens", ["-" if n is None else number(n) for n in fits]))
    return found


def render(plan: Plan) -> Group:
    """For a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    table.add_column("on each GPU", no_wrap=True)
    for option in plan.options:
        table.add_column(option.name, justify="right", style="bold" if option is plan.options[0] else "")
    for label, row in cells(plan):
        table.add_row(label, *row)
    advice = Text.assemble(("recommended: ", "bold"), (plan.command, "green"))
    fits = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    fits.add_column("requests of", justify="right", no_wrap=True)
    for option in plan.options:
        fits.add_column(option.name, justify="right", style="bold" if option is plan.options[0] else "")
    for label, row in length_cells(plan):
        fits.add_row(label, *row)
    notes = Table.grid(padding=(0, 1, 0, 0))
    for remark in remarks(plan):
        notes.add_row("-", Text(remark))
    return Group(Text(plan.source, "bold"), table, *([fits] if fits.rows else []), advice, notes)


def render_plain(plan: Plan) -> str:
    """For a pipe: the same words in aligned columns, at any width."""
    names = [option.name for option in plan.options]
    lengths = length_cells(plan)
    rows = [("on each GPU", names), *cells(plan)]
    fits = [("requests of", names), *lengths] if lengths else []
    first = max(len(label) for label, _ in [*rows, *fits])
    widths = [max(len(row[i]) for _, row in [*rows, *fits]) for i in range(len(plan.options))]

    def line(label: str, row: list[str], *, right: bool) -> str:
        head = label.rjust(first) if right else label.ljust(first)
        return "  ".join([head, *(cell.rjust(width) for cell, width in zip(row, widths, strict=True))]).rstrip()

    table = [*(line(label, row, right=False) for label, row in rows)]
    if fits:
        table += ["", *(line(label, row, right=True) for label, row in fits)]
    return "\n".join([plan.source, "", *table, "", f"recommended: {plan.command}", *(f"- {remark}" for remark in remarks(plan))])


def render_json(plan: Plan) -> str:
    """For a program: sizes in bytes, lengths in tokens, ``null`` where nothing is known."""
    return json.dumps(
        {
            "source": plan.source,
            "options": [asdict(option) for option in plan.options],
            "flags": list(plan.flags),
            "command": plan.command,
            "typical_tokens": plan.typical_tokens,
            "notes": list(plan.notes),
        },
        indent=2,
    )


def remarks(plan: Plan) -> list[str]:
    """The notes, and why a column is empty."""
    return [*plan.notes, *(f"{option.name}: {option.impossible}" for option in plan.options if option.impossible)]
