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
    ("pool (tokens)", lambda o: _count(o.pool_tokens)),
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


def render(plan: Plan) -> Group:
    """For a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    table.add_column("on each GPU", no_wrap=True)
    for option in plan.options:
        table.add_column(option.name, justify="right", style="bold" if option is plan.options[0] else "")
    for label, row in cells(plan):
        table.add_row(label, *row)
    advice = Text.assemble(("recommended: ", "bold"), (" ".join(plan.flags) or "nothing", "green"))
    notes = Table.grid(padding=(0, 1, 0, 0))
    for remark in remarks(plan):
        notes.add_row("-", Text(remark))
    return Group(Text(plan.source, "bold"), table, advice, notes)


def render_plain(plan: Plan) -> str:
    """For a pipe: the same words in aligned columns, at any width."""
    rows = [("on each GPU", [option.name for option in plan.options]), *cells(plan)]
    first = max(len(label) for label, _ in rows)
    widths = [max(len(row[i]) for _, row in rows) for i in range(len(plan.options))]
    table = [
        "  ".join([label.ljust(first), *(cell.rjust(width) for cell, width in zip(row, widths, strict=True))]).rstrip()
        for label, row in rows
    ]
    return "\n".join(
        [plan.source, "", *table, "", f"recommended: {' '.join(plan.flags) or 'nothing'}", *(f"- {remark}" for remark in remarks(plan))]
    )


def render_json(plan: Plan) -> str:
    """For a program: sizes in bytes, lengths in tokens, ``null`` where nothing is known."""
    options = [asdict(option) | {"max_num_seqs": option.max_num_seqs} for option in plan.options]
    return json.dumps(
        {
            "source": plan.source,
            "options": options,
            "flags": list(plan.flags),
            "typical_tokens": plan.typical_tokens,
            "notes": list(plan.notes),
        },
        indent=2,
    )


def remarks(plan: Plan) -> list[str]:
    """The notes, and why a column is empty."""
    return [*plan.notes, *(f"{option.name}: {option.impossible}" for option in plan.options if option.impossible)]
