"""A plan for a person's terminal, for a pipe, and for a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvwatch.plan.options import Option
from kvwatch.plan.plan import Plan
from kvwatch.plan.sizes import format_size

_Cell = Callable[[Option], str | None]


def _size(value: int | None) -> str | None:
    return None if value is None else format_size(value)


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}".replace(",", " ")


ROWS: Final[tuple[tuple[str, _Cell], ...]] = (
    ("longest sequence, tokens", lambda o: _count(o.max_model_len)),
    ("KV per token and GPU", lambda o: _size(o.bytes_per_token)),
    ("KV per full sequence and GPU", lambda o: _size(o.bytes_per_sequence)),
    ("weights per GPU", lambda o: _size(o.weights)),
    ("KV memory per GPU", lambda o: _size(o.kv_memory)),
    ("pool, tokens", lambda o: _count(o.pool_tokens)),
    ("full-length sequences", lambda o: _count(o.full_sequences)),
    ("... with 20 % headroom", lambda o: _count(o.full_safe)),
    ("typical sequences", lambda o: _count(o.typical_sequences)),
    ("... with 20 % headroom", lambda o: _count(o.typical_safe)),
)


def cells(plan: Plan) -> list[tuple[str, list[str]]]:
    """The rows that say something for any column; a cell without a number is a dash."""
    found = [(label, [cell(option) or "-" for option in plan.options]) for label, cell in ROWS]
    return [(label, row) for label, row in found if set(row) != {"-"}]


def render(plan: Plan) -> Group:
    """For a terminal."""
    table = Table(box=SIMPLE_HEAD, title=plan.source, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("")
    for number, option in enumerate(plan.options):
        table.add_column(option.name, justify="right", style="bold" if number == 0 else "")
    for label, row in cells(plan):
        table.add_row(label, *row)
    lines = [Text.assemble(("recommended: ", "bold"), (" ".join(plan.flags) or "nothing", "green"))]
    return Group(table, *lines, *(Text(f"- {remark}") for remark in remarks(plan)))


def render_plain(plan: Plan) -> str:
    """For a pipe: the same words in aligned columns, at any width."""
    rows = [("", [option.name for option in plan.options]), *cells(plan)]
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
