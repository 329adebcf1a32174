"""How soon each alert comes and goes, measured: ``python tests/alerts/guarantees.py`` writes the table of docs/alerts.md.

An engine is well, then in trouble, then well again; it is polled from three moments of a poll's interval on, with nothing and with a fifth
of the polls lost (three times each). Seen from kvwatch itself, and from a Prometheus that scrapes kvwatch and evaluates every 15 s, at
other moments: the rules do what kvwatch's own evaluation does from what was scraped (tests/rules/test_agreement.py). The worst of all runs
counts, rounded up to 5 s.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

from kvwatch.alerts.registry import DEFINITIONS
from kvwatch.alerts.state import AlertPhase, AlertState
from kvwatch.alerts.times import EVIDENCE_SECONDS
from kvwatch.assess import Judge, Judgement
from kvwatch.config.policy import KnownConfig, Objectives, Policy
from kvwatch.model import EngineConfig, EngineId, FailureReason, Histogram, Scrape, ScrapeFailure, Snapshot
from kvwatch.runs.meter import Meter
from kvwatch.runs.run import Run

DOCS: Final = Path(__file__).resolve().parents[2] / "docs" / "alerts.md"
POLICY: Final = Policy(objectives=Objectives(time_to_first_token=2.0))
KNOWN: Final = KnownConfig(max_num_seqs=64)
CONFIG: Final = EngineConfig(kv_cache_size_tokens=24_576)
ENGINE: Final = EngineId("demo-8b", "0")
INTERVALS: Final = (1.0, 5.0, 15.0)
LOSSES: Final = (0.0, 0.2)
SCRAPE: Final = 15.0
ONSET: Final = 180.0
ROUND: Final = 5.0
ROADS: Final = ("kvwatch", "Prometheus")

Answer = Scrape | ScrapeFailure
Cell = tuple[int, int]
"""Seconds from onset to firing and from end to resolved, the worst."""


@dataclass(frozen=True)
class Trouble:
    """What goes wrong: rates per second, gauges; or no answer that is of use."""

    seconds: float
    running: float = 9.0
    waiting: float = 0.0
    kv_usage: float = 0.3
    preempted: float = 0.0
    finished: float = 2.0
    tokens: float = 500.0
    first_token: float = 0.5
    failure: FailureReason | None = None
    tail: float = 300.0
    """How long it is looked at afterwards."""

    @property
    def late(self) -> float:
        """Requests that wait long for their first token."""
        return self.finished if self.first_token > 1 else 0.0


WELL: Final = Trouble(seconds=math.inf)
TROUBLES: Final[Mapping[str, Trouble]] = {
    "PreemptionStorm": Trouble(200.0, waiting=20.0, kv_usage=0.99, preempted=2.0),
    "EngineStalled": Trouble(300.0, waiting=5.0, finished=0.0, tokens=0.0),
    "KVBound": Trouble(400.0, waiting=20.0, kv_usage=0.99, preempted=2.0),
    "KVScaleOut": Trouble(1300.0, waiting=20.0, kv_usage=0.99, preempted=2.0),
    "ComputeBound": Trouble(700.0, running=64.0, waiting=20.0, kv_usage=0.4),
    "LatencyObjectiveMissed": Trouble(800.0, first_token=5.0),
    "BaselineRegressed": Trouble(3000.0, first_token=5.0, tail=1300.0),
    "TargetDown": Trouble(700.0, failure=FailureReason.CONNECT),
    "WatcherBlind": Trouble(700.0, failure=FailureReason.NOT_METRICS),
}


def answers(trouble: Trouble, interval: float, phase: float, lost: float, seed: int, *, until: float | None = None) -> Iterator[Answer]:
    """What the polls bring."""
    chance = random.Random(seed)  # noqa: S311 - noise, not a secret
    end = ONSET + trouble.seconds
    for number in range(int((end + trouble.tail if until is None else until) / interval) + (until is not None)):
        at = phase * interval + number * interval
        now = trouble if ONSET <= at < end else WELL
        during = max(0.0, min(at, end) - ONSET)
        well = at - during
        if chance.random() < lost:
            yield ScrapeFailure(at, FailureReason.TIMEOUT, "lost")
        elif now.failure is not None:
            yield ScrapeFailure(at, now.failure, "as the trouble has it")
        else:
            yield _scrape(at, now, lambda rate, well=well, during=during: getattr(WELL, rate) * well + getattr(trouble, rate) * during)  # type: ignore[misc]


def _scrape(at: float, now: Trouble, total: Callable[[str], float]) -> Scrape:
    late, count = total("late"), total("finished")
    first = Histogram((1.0, 2.0, 10.0), (count - late, count - late, count, count), None)
    snapshot = Snapshot(
        ENGINE, at, running=now.running, waiting=now.waiting, kv_usage=now.kv_usage,
        preemptions=total("preempted"), finished=count, generation_tokens=total("tokens"), prompt_tokens=total("tokens"),
        steps=total("tokens") / 20, time_to_first_token=first, config=CONFIG,
    )  # fmt: skip
    return Scrape(at, (snapshot,))


@cache
def baseline() -> Run:
    """Ten minutes of the engine while it is well."""
    meter = Meter(KNOWN)
    for one in answers(WELL, 15.0, 0.0, 0.0, 0, until=600.0):
        assert isinstance(one, Scrape)
        meter.add(one)
    return meter.run("well")


def firing(name: str, judged: list[tuple[float, Answer, Judgement]]) -> list[float]:
    """When the alert fires, by kvwatch itself."""
    return [
        at for at, _, said in judged if name in {alert.name for a in said.assessments for alert in a.alerts} | {a.name for a in said.alerts}
    ]


def firing_in_prometheus(name: str, judged: list[tuple[float, Answer, Judgement]], scraped: float, evaluated: float) -> list[float]:
    """When it fires there, scraping at *scraped* and evaluating at *evaluated* seconds of each 15."""
    alert = DEFINITIONS[name]
    for_seconds, hold = (0.0, 0.0) if alert.rule.waited else (alert.for_seconds, alert.hold_seconds)
    state = AlertState(for_seconds=for_seconds, hold=hold, evidence=EVIDENCE_SECONDS)
    found, last, position = [], judged[-1][0], 0
    for number in range(1, int(last / SCRAPE)):
        at = number * SCRAPE + evaluated
        scrape_at = at - ((evaluated - scraped) % SCRAPE)
        while position + 1 < len(judged) and judged[position + 1][0] <= scrape_at:
            position += 1
        if state.step(at, _scraped(name, judged[position][2])) is AlertPhase.FIRING:
            found.append(at)
    return found


def _scraped(name: str, said: Judgement) -> bool | None:
    """What a scrape finds of the condition that the rule waits on; ``None`` where it finds nothing."""
    if DEFINITIONS[name].rule.waited:
        return any(alert.name == name for one in said.assessments for alert in one.alerts)
    conditions = [said.conditions, *(one.conditions for one in said.assessments)]
    return next((one[name] for one in conditions if name in one), None)


def measured(name: str, interval: float, lost: float) -> dict[str, Cell]:
    """The worst of all runs, by road."""
    trouble, worst = TROUBLES[name], dict.fromkeys(ROADS, (0, 0))
    end = ONSET + trouble.seconds
    for phase, seed in product((0.02, 0.35, 0.68), range(3 if lost else 1)):
        judge = Judge(POLICY, KNOWN, interval, baseline())
        judged = [
            (one.at, one, judge.failed(one) if isinstance(one, ScrapeFailure) else judge.scraped(one))
            for one in answers(trouble, interval, phase, lost, seed)
        ]
        for road, times, step in (
            ("kvwatch", firing(name, judged), interval),
            ("Prometheus", firing_in_prometheus(name, judged, 0.3 + 4.9 * phase, 14.9 * phase), SCRAPE),
        ):
            assert times, (name, interval, lost, road)
            assert all(b - a < 1.5 * step for a, b in pairwise(times)), (name, interval, lost, road, "fires twice")
            come, gone = times[0] - ONSET, times[-1] + step - end
            worst[road] = (max(worst[road][0], _up(come)), max(worst[road][1], _up(gone)))
    return worst


def _up(seconds: float) -> int:
    return int(math.ceil(max(seconds, 0.0) / ROUND) * ROUND)


def table(cells: Mapping[tuple[str, str], list[Cell]]) -> str:
    """The table of docs/alerts.md."""
    heads = [f"{interval:.0f} s, {lost:.0%} lost".replace("%", " %") for interval in INTERVALS for lost in LOSSES]
    lines = [f"| alert | road | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for (name, road), row in cells.items():
        lines.append(f"| `{name}` | {road} | {' | '.join(f'{come} / {gone}' for come, gone in row)} |")
    return "\n".join(lines)


def all_cells() -> dict[tuple[str, str], list[Cell]]:
    """Every cell, measured."""
    cells: dict[tuple[str, str], list[Cell]] = {(name, road): [] for name in DEFINITIONS for road in ROADS}
    for name, interval, lost in product(DEFINITIONS, INTERVALS, LOSSES):
        for road, cell in measured(name, interval, lost).items():
            cells[name, road].append(cell)
    return cells


def stated() -> dict[tuple[str, str], list[Cell]]:
    """Every cell as the page has it."""
    cells: dict[tuple[str, str], list[Cell]] = {}
    for line in DOCS.read_text().splitlines():
        parts: list[Any] = [part.strip() for part in line.strip("|").split("|")]
        if len(parts) == 2 + len(INTERVALS) * len(LOSSES) and parts[0].strip("`") in DEFINITIONS:
            cells[parts[0].strip("`"), parts[1]] = [(int(start), int(end)) for start, end in (part.split(" / ") for part in parts[2:])]
    return cells


def main() -> int:
    """Write the table into the page."""
    text = DOCS.read_text()
    head, _, rest = text.partition("<!-- guarantees -->\n")
    tail = rest.partition("<!-- end -->")[2]
    DOCS.write_text(f"{head}<!-- guarantees -->\n{table(all_cells())}\n<!-- end -->{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
