"""Watching one target: scrapes go to the judge, and after each one a report says what is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kvwatch.assess import Judge
from kvwatch.check.report import Report
from kvwatch.clock import Clock
from kvwatch.config.policy import KnownConfig
from kvwatch.errors import ScrapeError
from kvwatch.model import ScrapeFailure
from kvwatch.poller.fetch import Fetch
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.version import server_version
from kvwatch.poller.vllm import parse_scrape


@dataclass(frozen=True, slots=True)
class Watch:
    """How to watch: what to ask, how often, for how long."""

    url: str
    fetch: Fetch
    clock: Clock
    wait: Callable[[float], None]
    interval: float
    seconds: float = math.inf
    """Without an end, a server that does not answer is waited for."""


GIVE_UP_AFTER: Final = 3
"""Failed scrapes from the start on after which waiting longer teaches nothing: the address is wrong, or nothing runs there."""


def watch(how: Watch, judge: Judge, known: KnownConfig) -> Iterator[Report]:
    """Scrape until the time is up (or nothing ever answers); yields what is known after each scrape."""
    began = how.clock.monotonic()
    scrapes = failures = 0
    memory = LabelMemory()
    while True:
        last = how.clock.monotonic()
        try:
            said = judge.scraped(parse_scrape(how.fetch(how.url), last, how.clock.unix(), memory)).assessments
            scrapes += 1
        except ScrapeError as error:
            said = judge.failed(ScrapeFailure(last, error.reason, error.detail)).assessments
            failures += 1
        yield Report(how.url, last - began, scrapes, failures, known, said)
        if last - began >= how.seconds or (scrapes == 0 and failures >= GIVE_UP_AFTER and math.isfinite(how.seconds)):
            return
        how.wait(max(0.0, min(last + how.interval, began + how.seconds) - how.clock.monotonic()))


def with_version(known: KnownConfig, url: str, fetch: Fetch) -> KnownConfig:
    """The same with the version the server itself names at ``/version``, where nobody has said it and the server does."""
    if known.vllm_version is not None:
        return known
    version = server_version(url, fetch)
    return known if version is None else known.model_copy(update={"vllm_version": version})
