"""vLLM's own log as a recording: the periodic stats lines become the scrapes they stand for.

Each line is written again as an exposition, so that a log goes through the same parser, classifier and alerts as a scrape. What a
log does not say stays absent: latencies, finished requests, preemptions. The forms: ``engine/metrics.py`` (V0, 0.2 to 0.10.2) and
``v1/metrics/loggers.py`` (V1), with whatever docker, Kubernetes, journald, Ray and colours put in front.

Since 0.11.1 a line has ``Preemptions: n`` where n is not 0. But up to 0.32 the count is set to 0 just before it is looked at, so that it
never appears: a line without it says nothing. V0 warns of every fiftieth, and says nothing in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from kvwatch.capacity.log_lines import unwrapped, written_at
from kvwatch.incident.recording import Entry
from kvwatch.model import FailureReason

USUAL_SECONDS: Final = 10.0
"""vLLM's ``VLLM_LOG_STATS_INTERVAL`` where nothing says otherwise."""
_SILENT_INTERVALS: Final = 3.0
"""Intervals without a line, while requests were running, after which the engine is taken to have gone silent. An idle one writes none."""
_MOST_SILENT_ENTRIES: Final = 60
"""Entries that stand for one silence at most: ten minutes at the usual interval; after that nothing more is known."""
_NEW_YEAR: Final = timedelta(days=180)
"""vLLM's times have no year: one that lies so far before the line above it is of the next year."""

_STATS: Final = re.compile(
    r"(?:Engine (?P<engine>\d+): |(?P<engines>\d+) Engines Aggregated: )?"
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg generation throughput: (?P<generation>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, (?:Swapped: (?P<swapped>\d+) reqs, )?(?:Pending|Waiting): (?P<waiting>\d+) reqs"
    r"(?:, Deferred: (?P<deferred>\d+) reqs)?(?P<rest>.*)"
)
_USAGE: Final = re.compile(r"KV cache usage: ([\d.]+)%")
"""The first in a line: V0 names the swap space too (``CPU KV cache usage``), always behind the cache itself."""
_PREEMPTIONS: Final = re.compile(r"Preemptions: (?P<count>\d+)")
_CUMULATIVE: Final = re.compile(r"total_num_cumulative_preemption=(?P<count>\d+)")
_SERVER_START: Final = re.compile(
    r"API server version (?P<api>\d[\w.+]*)|█ +version (?P<banner>\d[\w.+]*)|LLM engine \(v(?P<engine>\d[\w.+]*)\)"
)
_MODEL: Final = re.compile(r"served_model_name=(?:\[')?(?P<name>[^,'\]\s)]+)")
_VLLM_TIME: Final = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR) (?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)")


@dataclass(slots=True)
class _Counted:
    """What one engine has counted since its server started, put together from rates."""

    at: float
    prompt: float = 0.0
    generation: float = 0.0
    preemptions: float | None = None
    warned: float | None = None
    """Preemptions since the start as V0 warned of them since the last line."""
    busy: bool = False
    stands: bytes | None = None
    """The last exposition, if requests were running and no token was counted."""


@dataclass(slots=True)
class LogReader:
    """Reads stats lines in the order of the log. *year* is that of the first line, for vLLM's own times have none."""

    year: int
    model_name: str = "unknown"
    stats_lines: int = 0
    """Stats lines read so far."""
    counts_preemptions: bool = False
    """Whether a line of this vLLM has named preemptions: only then is their absence in another a zero."""
    without_time: bool = False
    """Whether a line had no time: such lines are taken to be the usual interval apart."""
    _last: datetime | None = None
    _interval: float | None = None
    _engines: dict[str, _Counted] = field(default_factory=dict)

    def entries(self, lines: Iterable[str]) -> Iterator[Entry]:
        """One entry for each stats line, and an error for each interval in which a busy engine wrote none."""
        for raw in lines:
            line, shipped = unwrapped(raw)
            found = _STATS.search(line)
            if found is None:
                self._note(line)
                continue
            at = self._time(line[: found.start()], shipped).timestamp()
            self.stats_lines += 1
            name = "all" if found["engines"] else str(int(found["engine"] or 0))
            yield from self._silence(name, at)
            exposition = self._exposition(name, at, found).encode()
            still = self._engines[name].busy and not float(found["prompt"]) and not float(found["generation"])
            self._engines[name].stands = exposition if still else None
            yield Entry(at, exposition, None)

    def _note(self, line: str) -> None:
        """What other lines say: a start, the model, V0's warning of a preemption."""
        if _SERVER_START.search(line):
            self._engines.clear()
            self.counts_preemptions = False
        if found := _MODEL.search(line):
            self.model_name = found["name"]
        if found := _CUMULATIVE.search(line):
            for counted in self._engines.values():
                counted.warned = float(found["count"])

    def _time(self, prefix: str, shipped: datetime | None) -> datetime:
        """The time of a line: as docker, Kubernetes or a log shipper wrote it, else vLLM's own; taken as UTC where no zone is given."""
        if (written := shipped or written_at(prefix)) is not None:
            return self._seen(written)
        if found := _VLLM_TIME.search(prefix):
            at = self._of_this_year(int(found["month"]), int(found["day"]), found["clock"])
            if at is not None:
                return self._seen(at)
        self.without_time = True
        start = datetime(self.year, 1, 1, tzinfo=UTC) if self._last is None else self._last + timedelta(seconds=USUAL_SECONDS)
        return self._seen(start)

    def _of_this_year(self, month: int, day: int, clock: str) -> datetime | None:
        hour, minute, second = map(int, clock.split(":"))
        try:
            at = datetime(self.year, month, day, hour, minute, second, tzinfo=UTC)
            if self._last is not None and self._last - at > _NEW_YEAR:
                self.year += 1
                at = at.replace(year=self.year)
        except ValueError:
            return None
        return at

    def _seen(self, at: datetime) -> datetime:
        """Time never goes back within a log: a line that is late counts with the one before it."""
        self._last = at if self._last is None else max(self._last, at)
        return self._last

    def _silence(self, name: str, at: float) -> Iterator[Entry]:
        """What a busy engine's missing lines stand for: after a line without a token for more of those, which vLLM does not write."""
        counted = self._engines.get(name)
        if counted is None or at <= counted.at:
            return
        gap, usual = at - counted.at, self._interval or USUAL_SECONDS
        if not counted.busy or gap <= _SILENT_INTERVALS * usual:
            self._interval = gap if self._interval is None else min(self._interval, gap)
            return
        for step in range(1, min(_MOST_SILENT_ENTRIES, int(gap / usual)) + 1):
            if step * usual < gap:
                silent = f"{FailureReason.TIMEOUT}: no stats line for {step * usual:.0f} s while requests were running"
                yield Entry(counted.at + step * usual, counted.stands, None if counted.stands else silent)

    def _exposition(self, name: str, at: float, found: re.Match[str]) -> str:
        counted = self._engines.get(name)
        seconds = (self._interval or USUAL_SECONDS) if counted is None else at - counted.at
        if counted is None:
            counted = self._engines[name] = _Counted(at)
        counted.at = at
        counted.prompt += float(found["prompt"]) * seconds
        counted.generation += float(found["generation"]) * seconds
        counted.busy = int(found["running"]) > 0
        if preempted := _PREEMPTIONS.search(found["rest"]):
            self.counts_preemptions = True
            counted.preemptions = (counted.preemptions or 0.0) + float(preempted["count"])
        elif self.counts_preemptions and counted.preemptions is None:
            counted.preemptions = 0.0
        preemptions, counted.warned = counted.warned if counted.preemptions is None else counted.preemptions, None
        labels = f'engine="{name}",model_name="{_escaped(self.model_name)}"'
        values: dict[str, float | None] = {
            "num_requests_running": float(found["running"]),
            "num_requests_waiting": float(found["waiting"]),  # the deferred ones among them
            "kv_cache_usage_perc": _usage(found["rest"]),
            "prompt_tokens_total": counted.prompt,
            "generation_tokens_total": counted.generation,
            "num_preemptions_total": preemptions,
        }
        lines = [f"vllm:{family}{{{labels}}} {value:.10g}" for family, value in values.items() if value is not None]
        if found["deferred"]:
            lines.append(f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} {found["deferred"]}')
        return "\n".join(lines) + "\n"


def _usage(rest: str) -> float | None:
    """The share of the KV cache in use, 0..1."""
    found = _USAGE.search(rest)
    return None if found is None else float(found[1]) / 100


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')
