"""What plain Prometheus rules would have done on the recordings whose truth is known, beside what kvwatch did."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from playing import decimated, replay

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.incident.recording import Reader
from kvwatch.incident.replay import ReplayRow
from kvwatch.model import Signals

POLL: Final = 5.0
MINUTE: Final = 60.0
DATA: Final = Path(__file__).parent.parent / "data"


@dataclass(frozen=True)
class Rule:
    """A condition that has to hold for so many seconds; *words* is how the table calls it."""

    words: str
    holds: Callable[[ReplayRow], bool]
    seconds: float = 0.0

    def fires(self, rows: Sequence[ReplayRow]) -> Iterator[float]:
        """Unix times at which it fires."""
        since: float | None = None
        for row in rows:
            since = (row.t if since is None else since) if self.holds(row) else None
            if since is not None and row.t - since >= self.seconds:
                yield row.t


def _plain(condition: Callable[[Signals], bool]) -> Callable[[ReplayRow], bool]:
    return lambda row: row.assessment.signals is not None and condition(row.assessment.signals)


RULES: Final = (
    Rule("`vllm:kv_cache_usage_perc > 0.95` for 1m", _plain(lambda s: (s.kv_usage or 0.0) > 0.95), MINUTE),
    Rule("`vllm:kv_cache_usage_perc > 0.95`, without a wait", _plain(lambda s: (s.kv_usage or 0.0) > 0.95)),
    Rule("`vllm:num_requests_waiting > 0` for 1m", _plain(lambda s: (s.waiting or 0.0) > 0), MINUTE),
    Rule("`increase(vllm:num_preemptions_total[2m]) > 0`", _plain(lambda s: (s.slow.preemptions or 0.0) > 0)),
    Rule("kvwatch: `PreemptionStorm`", lambda row: any(alert.name == "PreemptionStorm" for alert in row.assessment.alerts)),
)


@dataclass
class Tally:
    """Of all engines of all recordings: those with a storm, those paged for it, those with calm, and those paged for in it.

    For a minute after its storm a page is excused, as it is in the bars of kvwatch's own verdicts.
    """

    storms: int = 0
    paged: int = 0
    calm: int = 0
    invented: int = 0


def tallies() -> dict[str, Tally]:
    """A tally for each rule."""
    found = {rule.words: Tally() for rule in RULES}
    for path, engine, spans in _labelled():
        rows = _rows(path, engine)
        if not rows:
            continue
        origin = _rows_origin(path)
        for rule in RULES:
            fired = [at - origin for at in rule.fires(rows)]
            tally = found[rule.words]
            storms = [span for span in spans if span.get("storm")]
            if storms:
                tally.storms += 1
                tally.paged += any(span["from"] <= at <= span["to"] + MINUTE for at in fired for span in storms)
            calm = [span for span in spans if _is_calm(span)]
            if calm:
                tally.calm += 1
                excused = [(span["from"], span["to"] + MINUTE) for span in spans if not _is_calm(span)]
                awake = [at for at in fired if not any(begin <= at <= end for begin, end in excused)]
                tally.invented += any(span["from"] <= at <= span["to"] for at in awake for span in calm)
    return found


def table() -> list[str]:
    """The rows of the table in ``docs/figures.md``."""
    return [f"| {words} | {one.paged} of {one.storms} | {one.invented} of {one.calm} |" for words, one in tallies().items()]


def _is_calm(span: dict[str, Any]) -> bool:
    """Nobody was to be woken for a storm: said so, or another limit binds. Where the labels leave it open, nothing is counted."""
    return span.get("storm") is False or ("storm" not in span and span["state"] != "kv_bound")


def _labelled() -> Iterator[tuple[Path, str, list[dict[str, Any]]]]:
    for folder in ("recordings", "cases"):
        for name, spans in sorted(json.loads((DATA / folder / "labels.json").read_text()).items()):
            for engine in sorted({span["engine"] for span in spans}):
                yield DATA / folder / f"{name}.jsonl.xz", engine, [span for span in spans if span["engine"] == engine]


def _rows_origin(path: Path) -> float:
    with Reader(path, print) as reader:
        return next(iter(reader)).t


def _rows(path: Path, engine: str) -> list[ReplayRow]:
    with Reader(path, print) as reader:
        rows = list(replay(decimated(iter(reader), POLL), "vllm", judge_for(Settings(), interval=POLL)))
    return [row for row in rows if row.assessment.verdict.engine is None or row.assessment.verdict.engine.engine == engine]


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
