"""Another process answers now and then under one address, in each of the ways in which it may: nobody is paged for what it did before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from kvwatch.assess import Judge
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.model import EngineConfig, EngineId, Scrape, Snapshot

ENGINE: Final = EngineId("demo-8b", "0")
NEWER, OLDER, OLDEST = 500.0, 50_000.0, 90_000.0
"""For how many seconds each process has run when kvwatch begins to poll."""
WHO: Final[dict[str, Callable[[int], float]]] = {
    "an older one once": lambda poll: OLDER if poll == 30 else NEWER,
    "an older one twice": lambda poll: OLDER if poll in (30, 31) else NEWER,
    "two older ones": lambda poll: {30: OLDER, 40: OLDEST}.get(poll, NEWER),
    "two older ones, one after the other": lambda poll: {30: OLDER, 31: OLDEST}.get(poll, NEWER),
    "an older one now and then": lambda poll: OLDER if poll % 10 == 9 else NEWER,
    "three in turn": lambda poll: (NEWER, OLDER, OLDEST)[poll % 3],
    "an older one for good": lambda poll: OLDER if poll >= 30 else NEWER,
    "a newer one once": lambda poll: NEWER if poll == 30 else OLDER,
    "a newer one for good": lambda poll: NEWER if poll >= 30 else OLDER,
    "an older one first": lambda poll: OLDER if poll == 0 else NEWER,
}


def page(at: float, age: float) -> Snapshot:
    """A full cache in which one request in five was preempted long ago, and nothing is now."""
    return Snapshot(
        ENGINE,
        at,
        config=EngineConfig(kv_cache_size_tokens=100_000, block_size=16),
        running=4.0,
        waiting=0.0,
        kv_usage=0.95,
        preemptions=age - at if age - at > 40_000 else 0.0,
        finished=age,
        generation_tokens=100 * age,
        prompt_tokens=400 * age,
        steps=25 * age,
    )


@pytest.mark.parametrize("interval", [1.0, 5.0, 15.0, 60.0])
@pytest.mark.parametrize("names_its_start", [True, False], ids=["start named", "start not named"])
@pytest.mark.parametrize("who", WHO)
def test_what_another_process_did_before_pages_nobody(who: str, names_its_start: bool, interval: float) -> None:
    judge, told = Judge(Policy(), KnownConfig(), interval), set()
    for poll in range(120):
        at, age = poll * interval, WHO[who](poll)
        start = 1e9 - age if names_its_start else None
        said = judge.scraped(Scrape(at, (page(at, age + at),), unix=1e9 + at, process_start_time=start))
        told |= {alert.name for one in said.assessments for alert in one.alerts}
    assert told <= {"WatcherBlind", "KVScaleOut"}
