"""Watching one target for a while: scrapes go to the judge, the last word on every engine comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from kvwatch.assess import Judge
from kvwatch.check.report import Report
from kvwatch.clock import Clock
from kvwatch.config.policy import KnownConfig
from kvwatch.errors import ScrapeError
from kvwatch.model import Assessment, ScrapeFailure
from kvwatch.poller.fetch import Fetch
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.vllm import parse_scrape

Progress = Callable[[float, tuple[Assessment, ...]], None]
"""Told after each scrape: the share of the time that has passed, and what is said at this moment."""

_GIVE_UP_AFTER: Final = 3
"""Failed scrapes from the start on after which waiting longer teaches nothing."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How to watch: what to ask, how often, for how long."""

    url: str
    fetch: Fetch
    clock: Clock
    wait: Callable[[float], None]
    interval: float
    seconds: float


def watch(how: Watch, judge: Judge, known: KnownConfig, progress: Progress) -> Report:
    """Scrape until the time is up (or nothing ever answers), and report; Ctrl-C ends it early with what is known by then."""
    began = how.clock.monotonic()
    said: tuple[Assessment, ...] = ()
    scrapes = failures = 0
    last = began
    memory = LabelMemory()
    try:
        while True:
            last = how.clock.monotonic()
            try:
                said = judge.scraped(parse_scrape(how.fetch(how.url), last, how.clock.unix(), memory)).assessments
                scrapes += 1
            except ScrapeError as error:
                said = judge.failed(ScrapeFailure(last, error.reason, error.detail)).assessments
                failures += 1
            progress(min(1.0, (last - began) / how.seconds), said)
            if last - began >= how.seconds or (scrapes == 0 and failures >= _GIVE_UP_AFTER):
                break
            how.wait(max(0.0, min(last + how.interval, began + how.seconds) - how.clock.monotonic()))
    except KeyboardInterrupt:
        pass
    return Report(how.url, last - began, scrapes, failures, known, said)


def with_version(known: KnownConfig, url: str, fetch: Fetch) -> KnownConfig:
    """The same with the version the server itself names at ``/version``, where nobody has said it and the server does."""
    if known.vllm_version is not None:
        return known
    parts = urlsplit(url)
    base = parts.path.rstrip("/").removesuffix("/metrics")
    try:
        answer = json.loads(fetch(urlunsplit((parts.scheme, parts.netloc, f"{base}/version", "", ""))))
    except (ScrapeError, ValueError):
        return known
    version = answer.get("version") if isinstance(answer, dict) else None
    return known.model_copy(update={"vllm_version": version}) if isinstance(version, str) and version[:1].isdigit() else known
