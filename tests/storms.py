"""The storms of labelled recordings, and the pages that should have come of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

AFTER: Final = 60.0
"""Seconds after a KV-bound span in which a page may still stand."""
SOONEST: Final = 40.0
"""A storm this long must be paged whatever is lost."""

Firing = list[tuple[float, float]]
"""Begin and end of each time an alert fires, in seconds from the start of the recording."""


def labelled(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The labels of a folder of recordings, by the recording's name."""
    labels: dict[str, list[dict[str, Any]]] = json.loads((folder / "labels.json").read_text())
    return labels


def engines_of(spans: list[dict[str, Any]]) -> list[str]:
    """The engines that are labelled."""
    return sorted({str(span.get("engine", "0")) for span in spans})


def incidents(spans: list[dict[str, Any]]) -> Firing:
    """Storms that follow one another within the time evidence stands are one incident."""
    merged: Firing = []
    for span in sorted((s for s in spans if s.get("storm")), key=lambda s: s["from"]):
        if merged and span["from"] - merged[-1][1] <= AFTER:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span["to"]))
        else:
            merged.append((span["from"], span["to"]))
    return merged


def faults_of_pages(pages: Firing, spans: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with the storm pages of one engine, held against its labels: missed, split, invented."""
    calm = [(s["from"], s["to"]) for s in spans if s["state"] != "kv_bound"]
    excused = [(s["from"], s["to"] + AFTER) for s in spans if s["state"] == "kv_bound"]
    for begin, end in incidents(spans):
        during = [page for page in pages if page[0] < end + AFTER and page[1] > begin]
        if end - begin >= SOONEST and not during:
            yield f"page missed {begin:.0f}-{end:.0f}"
        if end - begin >= SOONEST and len(during) > 1:
            yield f"page split {begin:.0f}-{end:.0f}: {during}"
    for begin, _ in pages:
        if any(low <= begin < high for low, high in calm) and not any(low <= begin < high for low, high in excused):
            yield f"page invented {begin:.0f}"
