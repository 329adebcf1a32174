"""The pictures of the README, from a recording of a real vLLM in a storm: ``python tests/pictures.py`` makes them, with Chromium."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Final

from cast import cast
from playwright.sync_api import sync_playwright
from rich.console import Console

from kvwatch.assess import Judge
from kvwatch.check.render import render, render_plain
from kvwatch.check.report import Report
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.exporter.web.chart_history import ChartHistory
from kvwatch.exporter.web.page import StatusPage
from kvwatch.incident.recording import Reader
from kvwatch.model import TargetView
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.vllm import parse_scrape

REPOSITORY: Final = Path(__file__).resolve().parents[1]
STORM: Final = REPOSITORY / "tests" / "data" / "recordings" / "kv_storm.jsonl.xz"
UNTIL: Final = 120.0
"""Seconds of the recording that are played: it storms since the 45th."""
ADDRESS: Final = "http://127.0.0.1:8000/metrics"
KNOWN: Final = KnownConfig(max_num_seqs=64)
"""As the server of the recording was started."""


@dataclass
class Stopped:
    """The clock of the page, which stands where the recording was left."""

    at: float

    def monotonic(self) -> float:
        """Seconds of the recording."""
        return self.at

    def unix(self) -> float:
        """The same as a time of day."""
        return 1_800_000_000.0 + self.at


def played(path: Path = STORM, *, interval: float, start: float = 0.0, until: float = UNTIL) -> tuple[Report, TargetView, ChartHistory]:
    """What is known after this part of the recording, polled every *interval* seconds."""
    judge, history, memory = Judge(Policy(), KNOWN, interval), ChartHistory(), LabelMemory()
    scrapes, origin, due, first = 0, None, start, start
    with Reader(path, print) as reader:
        for entry in reader:
            origin = entry.t if origin is None else origin
            at = entry.t - origin
            if not due <= at <= until or entry.body is None:
                continue
            first, due, scrapes = (at, at + interval - 0.1, 1) if not scrapes else (first, at + interval - 0.1, scrapes + 1)
            assessments = judge.scraped(parse_scrape(entry.body, at, memory=memory)).assessments
            view = TargetView("vllm-0", ADDRESS, interval, at, at, 1_800_000_000.0 + at, 0.004, assessments=assessments)
            history.record(view)
    return Report(ADDRESS, at_of(view) - first, scrapes, 0, KNOWN, view.assessments), view, history


def at_of(view: TargetView) -> float:
    """When it was polled."""
    return view.at or 0.0


def checked() -> Report:
    """What ``kvwatch check --for 30s --max-num-seqs 64`` says in the midst of that storm."""
    return played(interval=1.0, start=70.0, until=100.0)[0]


def sample() -> str:
    """The same as the README shows it."""
    return render_plain(checked())


def main() -> None:
    """Write all pictures."""
    pictures = REPOSITORY / "docs" / "pictures"
    (pictures / "demo.svg").write_text(cast(), encoding="utf-8")
    console = Console(record=True, width=112, file=StringIO(), force_terminal=True)
    console.print("$ kvwatch check --for 30s --max-num-seqs 64", style="bold")
    console.print(render(checked(), console.width))
    svg = re.sub(r"@font-face {.*?}", "", console.export_svg(title="kvwatch check"), flags=re.DOTALL)  # fonts from somewhere else
    (pictures / "check.svg").write_text(svg, encoding="utf-8")
    _, view, history = played(interval=5.0)
    page = StatusPage(lambda: [view], Stopped(at_of(view)), history)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "page.html"
        file.write_bytes(page.render("").body)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        tab = browser.new_page(viewport={"width": 1400, "height": 1000})
        tab.goto(file.as_uri())
        tab.screenshot(path=str(pictures / "status-storm.png"))
        browser.close()


if __name__ == "__main__":
    main()
