"""Recordings against a real Prometheus that has their history: ``python tests/incident/history.py [--interval 5] RECORDING …``.

Each recording, one scrape in so many seconds, is written as OpenMetrics, made into blocks by ``promtool tsdb
create-blocks-from``, and served by a Prometheus; ``kvwatch replay`` of both must say the same. Prints a row for each: the share of scrapes
with the same state and the same cause, and when the first pages came. Needs ``make tools``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import free_port
from playing import decimated

from kvwatch.commands import cli
from kvwatch.incident.recording import Entry, Reader

TOOLS: Final = Path(__file__).resolve().parents[2] / ".cache" / "tools"
PAGES: Final = ("PreemptionStorm", "EngineStalled")
SOURCE: Final = 'job="vllm",instance="vllm-0:8000"'
Row = dict[str, Any]


@dataclass(frozen=True)
class Agreement:
    """How far two replays say the same, scrape by scrape."""

    scrapes: int
    same_state: int
    same_cause: int
    pages: dict[str, tuple[float | None, float | None]]
    """First time of each page that either knows: by the recording, by Prometheus."""
    different: tuple[str, ...]

    @property
    def share(self) -> float:
        """Of scrapes with the same state."""
        return self.same_state / self.scrapes if self.scrapes else 1.0

    def pages_within(self, seconds: float) -> bool:
        """Whether both page for the same, at most *seconds* apart."""
        return all(one is not None and other is not None and abs(one - other) <= seconds for one, other in self.pages.values())


def open_metrics(entries: Iterable[Entry]) -> Iterator[str]:
    """Samples with their times, family by family, as promtool wants them; a failed scrape is ``up`` 0."""
    series: dict[str, list[str]] = {}
    for entry in entries:
        series.setdefault("up", []).append(f"up{{{SOURCE}}} {int(entry.body is not None)} {entry.t:.3f}\n")
        for line in (entry.body or b"").decode().splitlines():
            if line and not line.startswith("#"):
                sample, _, value = line.rpartition(" ")
                name, brace, labels = sample.partition("{")
                labels = f"{SOURCE},{labels}" if brace and labels != "}" else f"{SOURCE}}}"
                series.setdefault(name, []).append(f"{name}{{{labels} {value} {entry.t:.3f}\n")
    for samples in series.values():
        yield from samples
    yield "# EOF\n"


@contextlib.contextmanager
def prometheus_of(recording: Path, interval: float, tools: Path = TOOLS) -> Iterator[tuple[str, float, float]]:
    """The URL of a Prometheus with the recording's history, and its first and last time."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with Reader(recording, print) as reader:
            entries = list(decimated(iter(reader), interval))
        with (home / "history.om").open("w") as file:
            file.writelines(open_metrics(entries))
        blocks: list[str | Path] = [tools / "promtool", "tsdb", "create-blocks-from", "openmetrics", home / "history.om", home / "data"]
        subprocess.run(blocks, check=True, capture_output=True, timeout=300)
        (home / "prometheus.yml").write_text("{}")
        url = f"http://127.0.0.1:{free_port()}"
        process = stack.enter_context(
            subprocess.Popen(
                [tools / "prometheus", f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'data'}",
                 "--storage.tsdb.retention.time=50y", f"--web.listen-address={url.removeprefix('http://')}", "--log.level=error"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        stack.callback(process.terminate)
        wait_until_ready(url)
        yield url, entries[0].t, entries[-1].t


def wait_until_ready(url: str) -> None:
    """Until it answers; raises what the last attempt raised."""
    for attempt in range(300):
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
        except (urllib.error.URLError, OSError):
            if attempt == 299:
                raise
            threading.Event().wait(0.2)
        else:
            return


def replayed(*arguments: object) -> list[Row]:
    """The lines of ``kvwatch replay``."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = cli.main(["replay", "--format", "jsonl", *map(str, arguments)])
    if code:
        raise RuntimeError(f"kvwatch replay {arguments} ended with {code}")
    return [json.loads(line) for line in out.getvalue().splitlines()]


def agreement(recording: Path, interval: float, tools: Path = TOOLS) -> Agreement:
    """Both replays of a recording, compared. Raises `LookupError` where there is nothing of vLLM in it."""
    recorded = replayed(recording, "--interval", f"{interval}s")
    if all(row["engine"] is None for row in recorded):
        raise LookupError("no series of vLLM: a Prometheus does not know what it scraped there, and the replay says so")
    with prometheus_of(recording, interval, tools) as (url, start, end):
        return compared(recorded, replayed("--prometheus", url, "--start", f"{start - 1:.3f}", "--end", f"{end + 1:.3f}"))


def compared(recorded: list[Row], found: list[Row]) -> Agreement:
    """Scrape by scrape and engine by engine; a scrape that only one of them knows is different."""
    one, other = ({(round(row["t"], 3), row["engine"]): row for row in rows} for rows in (recorded, found))
    same_state = same_cause = 0
    different = []
    for key in sorted(one.keys() | other.keys(), key=str):
        a, b = one.get(key), other.get(key)
        if a is not None and b is not None:
            same_state += a["state"] == b["state"]
            same_cause += a["cause"] == b["cause"]
        if a is None or b is None or (a["state"], a["cause"]) != (b["state"], b["cause"]):
            different.append(f"{key}: {_said(a)} and {_said(b)}")
    pages = {}
    for name in PAGES:
        times = tuple(next((row["t"] for row in rows if name in row["alerts"]), None) for rows in (recorded, found))
        if times != (None, None):
            pages[name] = (times[0], times[1])
    return Agreement(len(one.keys() | other.keys()), same_state, same_cause, pages, tuple(different))


def _said(row: Row | None) -> str:
    return "nothing" if row is None else f"{row['state']}/{row['cause']}"


def main() -> int:
    """Print a row for each recording; 1 where one is below 98 % or pages more than a scrape apart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("recordings", nargs="+", type=Path)
    parser.add_argument("--interval", type=float, default=5.0)
    given = parser.parse_args()
    good = True
    sys.stdout.write("| recording | scrapes | same state | same cause | pages: recording, Prometheus |\n|---|---|---|---|---|\n")
    for path in given.recordings:
        name = path.name.partition(".")[0]
        try:
            found = agreement(path, given.interval)
        except LookupError as nothing:
            sys.stdout.write(f"| {name} | {nothing} | | | |\n")
            continue
        good &= found.share >= 0.98 and found.pages_within(given.interval)
        pages = ", ".join(f"{name} {one} {other}" for name, (one, other) in found.pages.items()) or "none"
        causes = found.same_cause / max(1, found.scrapes)
        sys.stdout.write(f"| {name} | {found.scrapes} | {found.share:.1%} | {causes:.1%} | {pages} |\n")
        for line in found.different[:5]:
            sys.stderr.write(f"  {line}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
