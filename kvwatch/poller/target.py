"""How a target is asked: one scrape as the settings say, and the GPU exporter beside it where one is configured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from kvwatch.clock import Clock
from kvwatch.config.settings import PollSettings, Settings, TargetSettings
from kvwatch.errors import ScrapeError
from kvwatch.model import Scrape
from kvwatch.poller.fetch import Fetch, fetch
from kvwatch.poller.gpu import scrape_gpu
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.version import ServerVersion
from kvwatch.poller.vllm import parse_scrape

_log = structlog.get_logger(__name__)

_GPU_SECONDS: Final = 1.0
"""The GPU exporter is local, and its evidence is not worth waiting for."""
_GPU_PAUSE_SECONDS: Final = 60.0
"""Between two tries of a GPU exporter that fails: at a poll a second, one that hangs would cost every second poll."""


class TargetReader:
    """Asks one target, and the GPU exporter beside it where one is configured; remembers what belongs to that target."""

    def __init__(self, settings: Settings, clock: Clock, target: TargetSettings) -> None:
        self._url = target.url
        self._gpu = settings.gpu
        self._clock = clock
        self._fetch = fetch_as(settings.poll, clock)
        self._fetch_gpu = partial(fetch, deadline=_GPU_SECONDS, max_bytes=settings.poll.max_body_bytes, clock=clock)
        self._memory = LabelMemory()
        self._version = ServerVersion(target.url, self._fetch)
        self._gpu_not_before = 0.0

    def __call__(self) -> Scrape:
        """Scrape once. Raises `ScrapeError`."""
        scrape = parse_scrape(self._fetch(self._url), self._clock.monotonic(), self._clock.unix(), self._memory)
        return replace(scrape, gpu_utilization=self._gpu_utilization(), vllm_version=self._version.of(scrape.process_start_time))

    def _gpu_utilization(self) -> float | None:
        """Optional evidence: without it the verdict stands on vLLM's own numbers, and one that hangs is left alone for a while."""
        if self._gpu.url is None or self._clock.monotonic() < self._gpu_not_before:
            return None
        try:
            return scrape_gpu(self._fetch_gpu, self._gpu.url, self._gpu.labels)
        except ScrapeError as error:
            self._gpu_not_before = self._clock.monotonic() + _GPU_PAUSE_SECONDS
            _log.debug("gpu.failed", url=self._gpu.url, reason=str(error.reason), detail=error.detail)
            return None


def fetch_as(poll: PollSettings, clock: Clock) -> Fetch:
    """A fetch as the settings say: deadline, size, certificates and token."""
    return partial(
        fetch,
        deadline=poll.deadline,
        max_bytes=poll.max_body_bytes,
        clock=clock,
        ca_file=poll.ca_file,
        bearer_token_file=poll.bearer_token_file,
        trust_environment=poll.trust_environment,
    )
