"""How a target is asked: one scrape as the settings say, and the GPU exporter beside it where one is configured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from kvwatch.clock import Clock
from kvwatch.config.settings import GpuSettings, PollSettings, Settings, TargetSettings
from kvwatch.errors import ScrapeError
from kvwatch.model import Scrape
from kvwatch.poller.fetch import Fetch, fetch
from kvwatch.poller.gpu import scrape_gpu
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.vllm import parse_scrape

_log = structlog.get_logger(__name__)

_GPU_SECONDS: Final = 1.0
"""The GPU exporter is local, and its evidence is not worth waiting for."""


def read_target(settings: Settings, clock: Clock, target: TargetSettings, memory: LabelMemory | None = None) -> Scrape:
    """Ask a target once, and the GPU exporter beside it where one is configured. Raises `ScrapeError`."""
    scrape = parse_scrape(fetch_as(settings.poll, clock)(target.url), clock.monotonic(), clock.unix(), memory)
    utilization = _gpu_utilization(settings.gpu, clock, settings.poll.max_body_bytes)
    return scrape if utilization is None else replace(scrape, gpu_utilization=utilization)


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


def _gpu_utilization(gpu: GpuSettings, clock: Clock, max_bytes: int) -> float | None:
    """Optional evidence: without it the verdict stands on vLLM's own numbers."""
    if gpu.url is None:
        return None
    try:
        return scrape_gpu(partial(fetch, deadline=_GPU_SECONDS, max_bytes=max_bytes, clock=clock), gpu.url, gpu.labels)
    except ScrapeError as error:
        _log.debug("gpu.failed", url=gpu.url, reason=str(error.reason), detail=error.detail)
        return None
