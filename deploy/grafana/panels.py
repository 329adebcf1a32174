"""Grafana's JSON, as little of it as two dashboards need: panels that lay themselves out, and the frame around them.

Every panel must have a title, a description, a unit and the ``${datasource}`` variable: the functions ask for them, so none can forget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

Json = dict[str, Any]

DATASOURCE: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}
GRID_WIDTH: Final = 24

RATIO: Final = "percentunit"
SECONDS: Final = "s"
COUNT: Final = "short"
TOKENS: Final = "suffix: tokens"
TOKENS_PER_SECOND: Final = "suffix: tokens/s"
PER_SECOND: Final = "reqps"
BYTES_PER_SECOND: Final = "Bps"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and how its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel before it has a place."""

    kind: str
    title: str
    description: str
    queries: Sequence[Query]
    unit: str
    width: int
    height: int = 8
    instant: bool = False
    defaults: Json = field(default_factory=dict)
    options: Json = field(default_factory=dict)
    overrides: Sequence[Json] = ()
    transformations: Sequence[Json] = ()

    def linked(self, *links: Json) -> Panel:
        """The panel, with links from each of its values."""
        return replace(self, defaults={**self.defaults, "links": list(links)})


@dataclass(frozen=True, slots=True)
class Row:
    """A titled band of panels."""

    title: str
    panels: Sequence[Panel]


def timeseries(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    width: int = 12,
    top: float | None = None,
    limit: float | None = None,
) -> Panel:
    """Lines over time from 0; *top* fixes the upper end, *limit* draws a threshold line."""
    defaults: Json = {
        "min": 0,
        "custom": {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False, "thresholdsStyle": {"mode": "off"}},
    }
    if top is not None:
        defaults["max"] = top
    if limit is not None:
        defaults["custom"]["thresholdsStyle"] = {"mode": "line"}
        defaults["thresholds"] = steps(("transparent", None), ("red", limit))
    options = {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"], "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel("timeseries", title, description, queries, unit, width, defaults=defaults, options=options)


def stat(
    title: str, description: str, query: Query, unit: str, *, width: int = 4, thresholds: Json | None = None, mappings: Sequence[Json] = ()
) -> Panel:
    """The value now, coloured by *thresholds* or *mappings*."""
    defaults: Json = {"thresholds": thresholds or steps(("text", None)), "mappings": list(mappings)}
    options = {
        "colorMode": "background" if thresholds or mappings else "value",
        "graphMode": "none",
        "textMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return Panel("stat", title, description, [query], unit, width, height=4, instant=True, defaults=defaults, options=options)


def state_timeline(
    title: str, description: str, queries: Sequence[Query], *, mappings: Sequence[Json], width: int = GRID_WIDTH, height: int = 8
) -> Panel:
    """A band per series whose colour is its value."""
    defaults: Json = {
        "mappings": list(mappings),
        "color": {"mode": "thresholds"},
        "thresholds": steps(("text", None)),
        "custom": {"fillOpacity": 85, "lineWidth": 0},
    }
    options = {
        "mergeValues": True,
        "showValue": "never",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single"},
    }
    return Panel("state-timeline", title, description, queries, COUNT, width, height, defaults=defaults, options=options)


def table(
    title: str,
    description: str,
    columns: Iterable[tuple[str, Query, str]],
    *,
    hide: Sequence[str] = (),
    width: int = GRID_WIDTH,
    height: int = 8,
) -> Panel:
    """One row per label set; *columns* are (heading, query, unit)."""
    headings = list(columns)
    queries = [query for _, query, _ in headings]
    # Grafana numbers the value columns only where there are several.
    columns_by_name = [f"Value #{_letter(index)}" for index in range(len(headings))] if len(headings) > 1 else ["Value"]
    renamed = {name: heading for name, (heading, _, _) in zip(columns_by_name, headings, strict=True)}
    overrides = [
        {"matcher": {"id": "byName", "options": heading}, "properties": [{"id": "unit", "value": unit}]} for heading, _, unit in headings
    ]
    transformations = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": dict.fromkeys(("Time", "__name__", *hide), True), "renameByName": renamed}},
    ]
    return Panel(
        "table", title, description, queries, COUNT, width, height, instant=True,
        options={"showHeader": True, "cellHeight": "sm"}, overrides=overrides, transformations=transformations,
    )  # fmt: skip


def steps(*pairs: tuple[str, float | None]) -> Json:
    """Absolute thresholds: (colour, from this value on); the first has no value."""
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for color, value in pairs]}


def value_mappings(*entries: tuple[int, str, str]) -> list[Json]:
    """(value, text, colour) for each value that means a word."""
    return [
        {
            "type": "value",
            "options": {str(value): {"text": text, "color": color, "index": index} for index, (value, text, color) in enumerate(entries)},
        }
    ]


def variable(name: str, label: str, query: str, *, every: bool) -> Json:
    """A template variable of *query*; *every* allows several values, and all of them by default."""
    return {
        "type": "query", "name": name, "label": label, "datasource": DATASOURCE, "definition": query,
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "hide": 0, "regex": "", "skipUrlSync": False,
        "multi": every, "includeAll": every, "allValue": ".*" if every else None,
        "current": {"text": ["All"], "value": ["$__all"]} if every else {}, "options": [],
    }  # fmt: skip


def dashboard(
    uid: str,
    title: str,
    description: str,
    *,
    rows: Sequence[Row],
    variables: Sequence[Json],
    links: Sequence[Json],
    annotations: Sequence[Json],
) -> Json:
    """The whole dashboard, ready for file provisioning: stable uid, no id, not editable in place."""
    datasource = {
        "type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0, "refresh": 1, "regex": "",
        "multi": False, "includeAll": False, "current": {}, "options": [], "skipUrlSync": False,
    }  # fmt: skip
    return {
        "uid": uid, "id": None, "title": title, "description": description, "tags": ["kvwatch", "vllm"], "editable": False,
        "graphTooltip": 1, "schemaVersion": 39, "version": 1, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "",
        "fiscalYearStartMonth": 0, "liveNow": False, "style": "dark", "annotations": {"list": list(annotations)},
        "links": list(links), "templating": {"list": [datasource, *variables]}, "panels": _laid_out(rows),
    }  # fmt: skip


def _laid_out(rows: Sequence[Row]) -> list[Json]:
    """Panels from left to right, wrapped at the grid's width, each row under its title."""
    placed: list[Json] = []
    top = 0
    for row in rows:
        placed.append(
            {
                "type": "row",
                "id": len(placed) + 1,
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": GRID_WIDTH, "h": 1},
            }
        )
        top, left, tallest = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > GRID_WIDTH:
                top, left, tallest = top + tallest, 0, 0
            placed.append(_panel(panel, len(placed) + 1, {"x": left, "y": top, "w": panel.width, "h": panel.height}))
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
    return placed


def _panel(panel: Panel, number: int, position: Json) -> Json:
    return {
        "id": number, "type": panel.kind, "title": panel.title, "description": panel.description, "datasource": DATASOURCE,
        "gridPos": position, "options": panel.options, "transformations": list(panel.transformations),
        "fieldConfig": {"defaults": {"unit": panel.unit, **panel.defaults}, "overrides": list(panel.overrides)},
        "targets": [_target(query, _letter(index), panel) for index, query in enumerate(panel.queries)],
    }  # fmt: skip


def _target(query: Query, letter: str, panel: Panel) -> Json:
    return {
        "refId": letter, "datasource": DATASOURCE, "expr": query.expr, "legendFormat": query.legend or "__auto",
        "instant": panel.instant, "range": not panel.instant, "format": "table" if panel.kind == "table" else "time_series",
        "editorMode": "code",
    }  # fmt: skip


def _letter(index: int) -> str:
    return chr(ord("A") + index)
