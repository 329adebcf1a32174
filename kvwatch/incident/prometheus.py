"""A Prometheus that has scraped vLLM as a recording: its raw samples are put together again to the scrapes they came from.

Samples are read with range selectors in instant queries, not with ``query_range``: they keep the times at which they were
scraped, all samples of one scrape share one time, and nothing is repeated by the look-back over an outage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import requests

from kvwatch.errors import PrometheusError
from kvwatch.incident.recording import Entry
from kvwatch.model import FailureReason
from kvwatch.poller import names

_CHUNK_SECONDS: Final = 600
"""How much is asked for at once: bounds the memory on both sides."""
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 120.0
_ENGINE: Final = r"(.*_)?vllm[:_]"
"""What may stand before a sample's name: relabelled or not, with the colon or, after a conversion, with an underscore."""
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
    """Reads what a Prometheus (or what speaks its API) at *url* knows of vLLM. Raises `PrometheusError` in one line."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PrometheusError(f"{url}: a Prometheus URL starts with http:// or https:// and names a host")
        self._api = url.rstrip("/") + "/api/v1/query"
        self._shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def sources(self, start: float, end: float) -> tuple[Source, ...]:
        """The targets that reported a vLLM engine between two times (unix seconds)."""
        selector = f'{{__name__=~"{_ENGINE}num_requests_running"}}'
        found = self._query(f"group by (job, instance) (last_over_time({selector}[{_milliseconds(end - start)}]))", end)
        return tuple(sorted({_source(series["metric"]) for series in found}))

    def entries(self, start: float, end: float) -> Iterator[tuple[str, Entry]]:
        """Every scrape of every vLLM between two times (unix seconds) with the name of its target, in order of time."""
        sources = self.sources(start, end)
        if not sources:
            raise PrometheusError(f"{self._shown}: it has no samples of vLLM in that time")
        shown = _shown(sources)
        told = start - 0.001
        while start < end:
            until = min(start + _CHUNK_SECONDS, end)
            # Prometheus 2 includes the left end of a range and Prometheus 3 does not: ask a moment further back, take each time once.
            chunk = self._chunk(sources, start - 1.0, until)
            for t, source, entry in sorted(chunk, key=lambda found: found[:2]):
                if t > told:
                    yield shown[source], entry
            told = start = until

    def _chunk(self, sources: tuple[Source, ...], start: float, end: float) -> Iterator[tuple[float, Source, Entry]]:
        instances = _escaped("|".join(sorted({re.escape(source.instance) for source in sources})))
        engines = "|".join(sorted(names.ENGINE_SAMPLES))
        server = "|".join(sorted(names.SERVER))
        window = _milliseconds(end - start)
        read = self._lines(f'{{__name__=~"{_ENGINE}({engines})",instance=~"{instances}"}}[{window}]', end)
        about = self._lines(f'{{__name__=~"{server}",instance=~"{instances}"}}[{window}]', end)
        up = self._query(f'up{{instance=~"{instances}"}}[{window}]', end)
        for series in up:
            source = _source(series["metric"])
            if source in sources:
                for t, value in series["values"]:
                    yield t, source, _entry(t, value, read.get(source, {}).get(t, ()), about.get(source, {}).get(t, ()))

    def _lines(self, query: str, at: float) -> dict[Source, Lines]:
        found: dict[Source, Lines] = {}
        for series in self._query(query, at):
            name = _exposed(series["metric"])
            lines = found.setdefault(_source(series["metric"]), {})
            for t, value in series["values"]:
                lines.setdefault(t, []).append(f"{name} {value}\n")
        return found

    def _query(self, query: str, at: float) -> list[Any]:
        """The series of an instant query."""
        try:
            response = requests.post(
                self._api, data={"query": query, "time": f"{at:.3f}"}, timeout=(_CONNECT_SECONDS, _READ_SECONDS), allow_redirects=False
            )
        except requests.RequestException as error:
            raise PrometheusError(f"{self._shown}: {_reason(error)}") from error
        try:
            answer = response.json()
            if answer["status"] == "success":
                series: list[Any] = answer["data"]["result"]
                return series
            said = f"{answer['error']}"
        except (ValueError, KeyError, TypeError):
            said = f"HTTP status {response.status_code}, and no answer of a Prometheus"
        raise PrometheusError(f"{self._shown}: {' '.join(said.split())[:300]}")


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


def _reason(error: requests.RequestException) -> str:
    """Why, in one line and without the URL, which may hold credentials."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return "it did not answer in time" if isinstance(error, requests.Timeout) else f"it cannot be asked ({type(error).__name__})"
