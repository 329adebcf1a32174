"""A Prometheus that has scraped vLLM as a recording: its raw samples are put together again to the scrapes they came from.

Samples are read with range selectors in instant queries, not with ``query_range``: they keep the times at which they were
scraped, all samples of one scrape share one time, nothing is repeated by the look-back over an outage, and no limit on points
applies. A scrape that failed is known by ``up``; where ``up`` was not kept (a remote write of chosen series), only by its absence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvwatch.errors import PrometheusError
from kvwatch.incident.prometheus_api import PrometheusApi
from kvwatch.incident.recording import Entry
from kvwatch.model import FailureReason
from kvwatch.poller import names
from kvwatch.text import rfc3339

_CHUNK_SECONDS: Final = 600
"""How much is asked for at once: bounds the memory on both sides."""
_ENGINE: Final = r"(.*_)?vllm[:_]"
"""What may stand before a sample's name: relabelled or not, with the colon or, after a conversion, with an underscore."""
_PARTIAL_SECONDS: Final = 120.0
"""What may be missing at either end of a range without a word: two scrapes a minute apart."""
_SCRAPE_LABELS: Final = frozenset(("__name__", "job", "instance"))
"""Given by Prometheus, not by vLLM."""


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """One scrape target, as Prometheus names it."""

    job: str
    instance: str


Lines = dict[float, list[str]]
"""Exposition lines by time."""


class Prometheus:
    """Reads what a Prometheus (or what speaks its API) knows of vLLM; *match* as `selectors.matchers` gives it.

    Raises `PrometheusError` in one line.
    """

    def __init__(self, api: PrometheusApi, match: str = "") -> None:
        self._api = api
        self._match = f",{match}" if match else ""

    @property
    def name(self) -> str:
        """Its URL, without what may be secret."""
        return self._api.shown

    def sources(self, start: float, end: float) -> tuple[Source, ...]:
        """The targets that reported a vLLM engine between two times (unix seconds)."""
        selector = f'{{__name__=~"{_ENGINE}num_requests_running"{self._match}}}'
        found = self._api.query(f"group by (job, instance) (last_over_time({selector}[{_milliseconds(end - start)}]))", end)
        return tuple(sorted({_source(series["metric"]) for series in found}))

    def entries(self, start: float, end: float) -> Iterator[tuple[str, Entry]]:
        """Every scrape of every vLLM between two times (unix seconds) with the name of its target, in order of time."""
        sources = self.sources(start, end)
        if not sources:
            raise PrometheusError(f"{self._api.shown}: it has no samples of vLLM in that time{' that match' if self._match else ''}")
        shown = _shown(sources)
        asked, first, told = (start, end), None, start - 0.001
        while start < end:
            until = min(start + _CHUNK_SECONDS, end)
            # Prometheus 2 includes the left end of a range and Prometheus 3 does not: ask a moment further back, take each time once.
            chunk = self._chunk(sources, start - 1.0, until)
            for t, source, entry in sorted(chunk, key=lambda found: found[:2]):
                if t > told:
                    first, last = t if first is None else first, t
                    yield shown[source], entry
            told = start = until
        if first is not None and (first - asked[0] > _PARTIAL_SECONDS or asked[1] - last > _PARTIAL_SECONDS):
            self._api.complain(f"of the time asked for it has samples from {rfc3339(first)} to {rfc3339(last)} only")

    def _chunk(self, sources: tuple[Source, ...], start: float, end: float) -> Iterator[tuple[float, Source, Entry]]:
        instances = _escaped("|".join(sorted({re.escape(source.instance) for source in sources})))
        engines = "|".join(sorted(names.ENGINE_SAMPLES))
        server = "|".join(sorted(names.SERVER))
        window = _milliseconds(end - start)
        read = self._lines(f'{{__name__=~"{_ENGINE}({engines})",instance=~"{instances}"{self._match}}}[{window}]', end)
        about = self._lines(f'{{__name__=~"{server}",instance=~"{instances}"{self._match}}}[{window}]', end)
        up = self._api.query(f'up{{instance=~"{instances}"{self._match}}}[{window}]', end)
        polled: dict[Source, dict[float, str]] = {source: dict.fromkeys(read.get(source, ()), "1") for source in sources}
        for series in up:
            if (source := _source(series["metric"])) in polled:
                polled[source].update(series.get("values", ()))
        for source, times in polled.items():
            for t, value in times.items():
                yield t, source, _entry(t, value, read.get(source, {}).get(t, ()), about.get(source, {}).get(t, ()))

    def _lines(self, query: str, at: float) -> dict[Source, Lines]:
        found: dict[Source, Lines] = {}
        for series in self._api.query(query, at):
            if "__name__" not in series["metric"]:
                continue
            name = _exposed(series["metric"])
            lines = found.setdefault(_source(series["metric"]), {})
            for t, value in series.get("values", ()):
                lines.setdefault(t, []).append(f"{name} {value}\n")
        return found


def _source(metric: Mapping[str, str]) -> Source:
    return Source(metric.get("job", ""), metric.get("instance", ""))


def _shown(sources: tuple[Source, ...]) -> dict[Source, str]:
    """A target is named by its instance, and by its job as well where two jobs scrape one instance."""
    instances = [source.instance for source in sources]
    return {source: source.instance if instances.count(source.instance) == 1 else f"{source.job}/{source.instance}" for source in sources}


def _exposed(metric: Mapping[str, str]) -> str:
    """Name and labels as vLLM exposed them."""
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in metric.items() if name not in _SCRAPE_LABELS)
    return f"{metric['__name__']}{{{labels}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _entry(t: float, up: str, read: Sequence[str], about: Sequence[str]) -> Entry:
    if float(up) == 0 and not read:
        return Entry(t, None, f"{FailureReason.CONNECT}: Prometheus could not scrape it (up is 0)")
    return Entry(t, "".join((*read, *about)).encode(), None)


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
