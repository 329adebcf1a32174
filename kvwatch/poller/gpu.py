"""How busy the GPU behind a target is, from a DCGM exporter: optional evidence, never a verdict of its own.

``DCGM_FI_DEV_GPU_UTIL`` is the share of time, in percent, in which any kernel ran; where it is not exported (MIG has none),
``DCGM_FI_PROF_GR_ENGINE_ACTIVE`` says the same as a ratio. Both read high while preempted work is computed again: low utilisation is
evidence (work waits in front of the GPU), high utilisation is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from kvwatch.poller.exposition import decode, parse_labels, select

FULL_SCALE: Final[Mapping[str, float]] = {"DCGM_FI_DEV_GPU_UTIL": 100.0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0}
"""Series of a DCGM exporter, the better one first -> the value that means always busy."""


def scrape_gpu(fetch: Callable[[str], bytes], url: str, labels: Mapping[str, str]) -> float | None:
    """Utilisation 0..1 of the busiest GPU at the DCGM exporter *url* whose series carry all of *labels*.

    ``None`` where no such series has a value now. Raises `ScrapeError` as *fetch* and the exposition do.
    """
    return busiest_gpu(fetch(url), labels)


def busiest_gpu(body: bytes, labels: Mapping[str, str]) -> float | None:
    """The same of an exposition that is already here."""
    busiest: dict[str, float] = {}
    for name, text, value in select(decode(body), _known):
        # DCGM writes "no value" as a number near the end of its integer range.
        if 0 <= value <= FULL_SCALE[name] and labels.items() <= _labels(text).items():
            busiest[name] = max(value, busiest.get(name, 0.0))
    return next((busiest[name] / full for name, full in FULL_SCALE.items() if name in busiest), None)


def _known(name: str) -> str | None:
    return name if name in FULL_SCALE else None


@lru_cache(maxsize=512)
def _labels(text: str) -> dict[str, str]:
    return parse_labels(text)
