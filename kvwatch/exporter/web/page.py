"""The status page at ``/``: one document without any external part, drawn anew from the latest views for each request.

With few engines everything is on it; with many it is an overview, and each engine has a page of its own behind
``?engine=…``. What else may stand in its address says `selection.Selection`. Whatever a target says, model names above
all, is escaped by jinja2; the Content-Security-Policy admits exactly the style and the script of the package.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Final

import structlog
from markupsafe import Markup

from kvwatch import __version__
from kvwatch.alerts.definition import PROMETHEUS_PREFIX
from kvwatch.clock import Clock
from kvwatch.exporter.web import charts, condition, wording
from kvwatch.exporter.web.blind_spots import ALWAYS
from kvwatch.exporter.web.chart_history import ChartHistory
from kvwatch.exporter.web.condition import Condition, pill_words
from kvwatch.exporter.web.details import Details, details
from kvwatch.exporter.web.overview import COLUMNS, EngineRow, ordered, rows_of
from kvwatch.exporter.web.routes import Response
from kvwatch.exporter.web.runbook import first_steps
from kvwatch.exporter.web.selection import Selection
from kvwatch.exporter.web.status import Instant
from kvwatch.html import templates
from kvwatch.model import Severity, TargetView
from kvwatch.text import rfc3339

DETAILED_UP_TO: Final = 6
"""Engines shown in full on one page; with more, the overview alone comes first."""
_TEMPLATES: Final = resources.files("kvwatch.exporter.web") / "templates"
_STYLE: Final = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
_SCRIPT: Final = (_TEMPLATES / "refresh.js").read_text(encoding="utf-8")
_FASTEST_REFRESH: Final = 2.0
_SLOWEST_REFRESH: Final = 30.0
_TAB_COLOURS: Final = {
    Condition.DOWN: "#c22f2f",
    Condition.KV_BOUND: "#c22f2f",
    Condition.COMPUTE_BOUND: "#9a5b00",
    Condition.UNKNOWN: "#5b6470",
    Condition.HEALTHY: "#1a7f45",
}

_log = structlog.get_logger(__name__)


def _csp_hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'none'; script-src {_csp_hash(_SCRIPT)}; style-src {_csp_hash(_STYLE)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class StatusPage:
    """Renders the page; `render` is what `http.Sources.page` wants.

    ``views`` must not block. ``history`` is filled by whoever publishes views; ``storm_ratio`` is where the plots draw their limit.
    """

    def __init__(
        self, views: Callable[[], Sequence[TargetView]], clock: Clock, history: ChartHistory, *, storm_ratio: float = 0.10
    ) -> None:
        self._views = views
        self._clock = clock
        self._history = history
        self.storm_ratio = storm_ratio
        environment = templates("kvwatch.exporter.web")
        environment.filters.update(
            percent=wording.percent,
            number=wording.number,
            seconds=wording.seconds,
            duration=wording.duration,
            short=_short,
            address=_address,
        )
        environment.globals.update(
            version=__version__,
            style=Markup(_STYLE),  # noqa: S704 - our own file
            script=Markup(_SCRIPT),  # noqa: S704 - our own file
            columns=COLUMNS,
            condition_words=condition.WORDS,
            conditions=condition.WORDS,
            pill_words=pill_words,
            state_of=lambda state: condition.WORDS.get(state, state),
            prefix=PROMETHEUS_PREFIX,
            first_steps=first_steps(),
            colours=_TAB_COLOURS,
            always=ALWAYS,
            band_summary=charts.band_summary,
            width=charts.WIDTH,
            height=charts.HEIGHT,
            absent=wording.ABSENT,
        )
        for part in environment.list_templates(extensions=["j2"]):  # compiled now, not while the first reader waits
            environment.get_template(part)
        self._template = environment.get_template("page.html.j2")

    def render(self, query: str) -> Response:
        """The page for a query string; what it does not understand in it is ignored, an engine that is gone is a 404."""
        selection = Selection.of(query)
        chosen = selection.engine
        moment = Instant(self._clock)
        views = self._views()
        timeline = charts.Timeline.since(self._history.oldest(), moment.monotonic, moment.unix)
        rows = ordered(tuple(rows_of(views, moment.monotonic)), selection.sort)
        left_out: tuple[EngineRow, ...] = ()
        try:
            html = self._draw(rows, left_out, selection=selection, moment=moment, timeline=timeline)
        except Exception:  # noqa: BLE001 - one engine that cannot be drawn must not cost the reader the others
            _log.exception("page.engine_left_out")
            drawn = tuple(row for row in rows if self._can_be_drawn(row, moment, timeline))
            left_out = tuple(row for row in rows if all(row is not one for one in drawn))
            html = self._draw(drawn, left_out, selection=selection, moment=moment, timeline=timeline)
        status = 404 if chosen and all(row.id != chosen for row in rows) else 200
        return Response(status, "text/html; charset=utf-8", html.encode("utf-8", "replace"), CONTENT_SECURITY_POLICY)

    def _can_be_drawn(self, row: EngineRow, moment: Instant, timeline: charts.Timeline) -> bool:
        try:
            self._draw((row,), (), selection=Selection(engine=row.id), moment=moment, timeline=timeline)
        except Exception:  # noqa: BLE001 - this is what is asked
            return False
        return True

    def _draw(
        self,
        rows: Sequence[EngineRow],
        left_out: Sequence[EngineRow],
        *,
        selection: Selection,
        moment: Instant,
        timeline: charts.Timeline,
    ) -> str:
        chosen = selection.engine
        selected = tuple(row for row in rows if row.id == chosen) if chosen else selection.shown(rows)
        detailed = [self._details(row, timeline) for row in selected] if chosen or len(selected) <= DETAILED_UP_TO else []
        counts = Counter(row.condition for row in rows)
        return self._template.render(
            now=moment,
            generated=rfc3339(moment.unix),
            rows=rows,
            selected=selected,
            groups=selection.groups(selected),
            labels=_labels(rows),
            left_out=left_out,
            bands={row.id: self._band(row, timeline) for row in selected},
            details=detailed,
            timeline=timeline,
            chosen=chosen,
            selection=selection,
            counts=selection.counted(rows),
            targets=len({row.view.name for row in (*rows, *left_out)}),
            summary=condition.summary(counts),
            title=condition.title(counts),
            worst=next((one for one in Condition if counts[one]), Condition.UNKNOWN),
            firing=_firing(rows),
            refresh=self._refresh([row.view for row in rows]),
        )

    def _details(self, row: EngineRow, timeline: charts.Timeline) -> Details:
        engine = row.verdict.engine
        points = () if engine is None else self._history.points(row.view.name, engine)
        return details(row, points, timeline, storm_ratio=self.storm_ratio)

    def _band(self, row: EngineRow, timeline: charts.Timeline) -> tuple[charts.BandSegment, ...]:
        engine = row.verdict.engine
        conditions = () if engine is None else self._history.conditions(row.view.name, engine)
        return charts.state_band(conditions, timeline, interval=row.view.interval)

    @staticmethod
    def _refresh(views: Sequence[TargetView]) -> float:
        """Seconds until something new can be on the page."""
        return min(max(min((view.interval for view in views), default=_SLOWEST_REFRESH), _FASTEST_REFRESH), _SLOWEST_REFRESH)


def _firing(rows: Sequence[EngineRow]) -> list[tuple[tuple[str, Severity], int]]:
    """Names and severities of the firing alerts with how often they fire, pages first. An alert about a target counts once."""
    about_targets = {(row.view.name, alert.name): alert for row in rows for alert in row.view.alerts}
    firing = Counter((alert.name, alert.severity) for alert in about_targets.values())
    firing.update((alert.name, alert.severity) for row in rows for alert in row.assessment.alerts)
    return sorted(firing.items(), key=lambda item: (item[0][1] is not Severity.CRITICAL, item[0][0]))


def _labels(rows: Sequence[EngineRow]) -> list[str]:
    """Names of the labels by which the engines can be grouped."""
    return sorted({name for row in rows for name in row.view.labels})


def _address(target: str) -> str:
    """A target that is named by its URL without what all of those have in common, so that a table has room for it."""
    return target.removeprefix("http://").removesuffix("/metrics") or target


def _short(text: str, most: int) -> str:
    """A name a person can take in, at most so many characters: its beginning and its end, which in a path tell more than the middle."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[len(text) - (most - most // 2 - 1) :]}"
