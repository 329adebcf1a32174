"""How the daemon asks a target: one scrape as the settings say, and the GPU exporter beside it where one is configured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from kvwatch.clock import Clock
from kvwatch.errors import ScrapeError
from kvwatch.model import Scrape
from kvwatch.poller.fetch import fetch
from kvwatch.poller.gpu import scrape_gpu
from kvwatch.poller.vllm import parse_scrape
from kvwatch.settings import GpuSettings, Settings, TargetSettings

_log = structlog.get_logger(__name__)

_GPU_SECONDS: Final = 1.0
"""The GPU exporter is local, and its evidence is not worth waiting for."""


def read_target(settings: Settings, clock: Clock, target: TargetSettings) -> Scrape:
    """Ask a target once, and the GPU exporter beside it where one is configured. Raises `ScrapeError`."""
    poll = settings.poll
    ask = partial(
        fetch,
        deadline=poll.deadline,
        max_bytes=poll.max_body_bytes,
        clock=clock,
        ca_file=poll.ca_file,
        bearer_token_file=poll.bearer_token_file,
        trust_environment=poll.trust_environment,
    )
    scrape = parse_scrape(ask(target.url), clock.monotonic())
    if settings.gpu.url is None:
        return scrape
    return replace(scrape, gpu_utilization=_gpu_utilization(settings.gpu, clock, poll.max_body_bytes))


def _gpu_utilization(gpu: GpuSettings, clock: Clock, max_bytes: int) -> float | None:
    """Optional evidence: without it the verdict stands on vLLM's own numbers."""
    if gpu.url is None:
        return None
    try:
        return scrape_gpu(partial(fetch, deadline=_GPU_SECONDS, max_bytes=max_bytes, clock=clock), gpu.url, gpu.labels)
    except ScrapeError as fault:
        _log.debug("gpu.failed", url=gpu.url, reason=str(fault.reason), detail=fault.detail)
        return None
