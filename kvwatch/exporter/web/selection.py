"""Which engines a reader asks for, in the page's own address: a link to it shows the next reader the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Self
from urllib.parse import parse_qs, urlencode

from kvwatch.exporter.web.condition import Condition
from kvwatch.exporter.web.overview import EngineRow

_LONGEST: Final = 200
"""Characters of a value that are heeded: the longest name of a pod is 253, and nobody types that much."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A query string, read: what is not understood in it is ignored."""

    engine: str = ""
    """Of this engine alone, in full."""
    state: str = ""
    model: str = ""
    label: str = ""
    """``name=value`` of a label of the target, such as ``namespace=prod``."""
    q: str = ""
    """Words that all stand somewhere in the names and labels of the engine."""
    group: str = ""
    """``model``, or the name of a label."""
    sort: str = "state"

    @classmethod
    def of(cls, query: str) -> Self:
        """Read it."""
        asked = parse_qs(query)
        given = {field.name: asked[field.name][-1][:_LONGEST] for field in fields(cls) if field.name in asked}
        return cls(**given)

    def link(self, **changes: str) -> str:
        """The address of the same selection with *changes*; relative, so that a proxy may have the page anywhere."""
        wanted = replace(self, **changes)
        said = {field.name: getattr(wanted, field.name) for field in fields(self) if getattr(wanted, field.name) != field.default}
        return f"?{urlencode(said)}" if said else "./"

    @property
    def narrows(self) -> bool:
        """Whether engines are left out."""
        return bool(self.state or self.model or self.label or self.q.strip())

    def shown(self, rows: Sequence[EngineRow]) -> tuple[EngineRow, ...]:
        """Those it asks for, in their order."""
        return tuple(row for row in rows if (not self.state or row.condition == self.state) and self._is_about(row))

    def counted(self, rows: Sequence[EngineRow]) -> dict[Condition, int]:
        """How many engines of each condition it would show if it asked for that one."""
        about = [row.condition for row in rows if self._is_about(row)]
        return {condition: about.count(condition) for condition in Condition}

    def groups(self, rows: Sequence[EngineRow]) -> tuple[tuple[str, tuple[EngineRow, ...]], ...]:
        """The rows by what they are grouped by, the group with the worst row first; one group without a name where they are not."""
        found: dict[str, list[EngineRow]] = {}
        for row in rows:
            found.setdefault(self._group_of(row), []).append(row)
        return tuple((name, tuple(members)) for name, members in found.items())

    def _group_of(self, row: EngineRow) -> str:
        if not self.group:
            return ""
        return (row.model_name if self.group == "model" else row.view.labels.get(self.group, "")) or "none"

    def _is_about(self, row: EngineRow) -> bool:
        if self.model and row.model_name != self.model:
            return False
        name, _, value = self.label.partition("=")
        if self.label and row.view.labels.get(name) != value:
            return False
        text = "\n".join((row.view.name, row.view.url, row.model_name, row.engine, row.cause, *row.view.labels.values())).casefold()
        return all(word in text for word in self.q.casefold().split())
