"""The status page as the demo's scenarios leave it: ``python tests/scenes.py FOLDER`` photographs every kind of it, to be looked at."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final, Literal

from pictures import Stopped
from playwright.sync_api import sync_playwright
from rehearsal import POLL, Rehearsal

from kvwatch.demo.acts import SCENARIOS
from kvwatch.exporter.web.chart_history import ChartHistory
from kvwatch.exporter.web.page import StatusPage
from kvwatch.model import TargetView

SCENES: Final = {
    "storm": ("storm", 2),
    "kv-full": ("full", 2),
    "long-prompts": ("long-prompts", 2),
    "slots": ("slots", 2),
    "step-budget": ("step-budget", 2),
    "compute": ("compute", 2),
    "frontend": ("frontend", 2),
    "deferred": ("deferred", 2),
    "hung": ("stall", 2),
    "dead": ("dead", 2),
    "back": ("dead", 3),
    "asleep": ("asleep", 2),
    "no-statistics": ("no-statistics", 2),
    "idle": ("idle", 2),
    "advice-followed": ("storm", 3),
}
"""A scenario, and after how many of its acts the page is looked at."""
SIZES: Final = {"desk": (1400, 1000), "phone": (390, 844)}
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
FLEETS: Final = (40, 300)
_WELL_OF_TEN: Final = 7
NOW: Final = Stopped(3000.0)


@cache
def played(scene: str) -> tuple[TargetView, ...]:
    """Every view of one server, polled every 5 s; the last one is of `NOW`."""
    scenario, number = SCENES[scene]
    acts = SCENARIOS[scenario][:number]
    rehearsal = Rehearsal(seed=1, began=NOW.at - sum(act.seconds for act in acts))
    views, answered = [], None
    for act in acts:
        act.begin(rehearsal.simulation, rehearsal.advised)
        for _ in range(round(act.seconds / POLL)):
            judgement = rehearsal.poll()
            answered = rehearsal.now if rehearsal.failure is None else answered
            views.append(
                TargetView(
                    "vllm-0",
                    "http://127.0.0.1:8000/metrics",
                    POLL,
                    rehearsal.now,
                    answered,
                    None if answered is None else NOW.unix() - NOW.at + answered,
                    None if rehearsal.failure else 0.004,
                    failure=rehearsal.failure,
                    assessments=judgement.assessments,
                    alerts=judgement.alerts,
                )
            )
    return tuple(views)


def views_of(scenes: Sequence[str]) -> Iterator[tuple[TargetView, ...]]:
    """The same for a fleet: one server each, with names and labels of their own."""
    for number, scene in enumerate(scenes):
        labels = {"namespace": f"models-{number % 3}", "pod": f"llama-3-70b-instruct-{number:03d}", "node": f"gpu-{number // 8:02d}"}
        url = f"http://10.0.{number // 250}.{number % 250 + 1}:8000/metrics"
        yield tuple(replace(view, name=labels["pod"], url=url, labels=labels) for view in played(scene))


def fleet(size: int) -> list[str]:
    """Scenes of so many servers: seven of ten are well."""
    well, others = ("kv-full", "back"), [scene for scene in SCENES if scene not in {"kv-full", "back"}]
    return [well[number % 2] if number % 10 < _WELL_OF_TEN else others[number % len(others)] for number in range(size)]


def page_of(servers: Iterable[tuple[TargetView, ...]]) -> StatusPage:
    """The page at the last of these views of each server."""
    history, last = ChartHistory(), []
    for views in servers:
        last.append(views[-1])
        for view in views:
            history.record(view)
    return StatusPage(lambda: last, NOW, history)


def page_named(name: str) -> StatusPage:
    """A scene's page, or that of a fleet: ``300-targets``."""
    return page_of([played(name)] if name in SCENES else views_of(fleet(int(name.removesuffix("-targets")))))


def main() -> None:
    """Photograph each at every size, in light and dark."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for name in (*SCENES, *(f"{size}-targets" for size in FLEETS)):
            (folder / f"{name}.html").write_bytes(page_named(name).render("").body)
            for (size, (width, height)), scheme in product(SIZES.items(), SCHEMES):
                tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                tab.goto((folder / f"{name}.html").as_uri())
                tab.screenshot(path=str(folder / f"{name}-{size}-{scheme}.png"), full_page=True)
                tab.close()
        browser.close()


if __name__ == "__main__":
    main()
