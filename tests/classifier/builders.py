"""Snapshots and signals for the classifier's tests, built from what a test cares about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvwatch.model import EngineId, GaugeStats, Histogram, Scrape, Signals, Snapshot, Window

ENGINE = EngineId("demo-8b", "0")


def snapshot(at: float, **fields: Any) -> Snapshot:
    """A snapshot of engine 0; a quiet engine unless told otherwise."""
    quiet: dict[str, Any] = {
        "running": 0.0,
        "waiting": 0.0,
        "kv_usage": 0.0,
        "preemptions": 0.0,
        "finished": 0.0,
        "generation_tokens": 0.0,
        "prompt_tokens": 0.0,
        "steps": 0.0,
    }
    return Snapshot(ENGINE, at, **(quiet | fields))


def scrape(*snapshots: Snapshot, **fields: Any) -> Scrape:
    """A scrape at the time of its first snapshot."""
    return Scrape(at=snapshots[0].at, snapshots=tuple(snapshots), **fields)


def steady(value: float) -> GaugeStats:
    """A gauge that did not move."""
    return GaugeStats(mean=value, low=value, peak=value, last=value)


def histogram(*counts: float, bounds: tuple[float, ...] = (1.0, 2.0), total: float | None = None) -> Histogram:
    """A histogram with these cumulative counts."""
    return Histogram(bounds, counts, total)


def window(seconds: float = 30.0, **fields: Any) -> Window:
    """A window of a quiet engine."""
    quiet: dict[str, Any] = {
        "running": steady(0.0),
        "waiting": steady(0.0),
        "queue": steady(0.0),
        "queued_share": 0.0,
        "kv_usage": steady(0.0),
        "preemptions": 0.0,
        "finished": 0.0,
        "prompt_tokens": 1000.0,
    }
    return Window(seconds=seconds, samples=7, **(quiet | fields))


def signals(*, every: dict[str, Any] | None = None, fast: dict[str, Any] | None = None, **fields: Any) -> Signals:
    """Signals whose three windows say the same (`every`), but for what `fast` says otherwise."""
    common = every or {}
    found = Signals(at=100.0, recent=window(15.0, **common), fast=window(30.0, **common), slow=window(120.0, **common))
    found = replace(found, fast=replace(found.fast, **(fast or {})))
    preempted = {
        "preempted": found.slow.preemptions,
        "preempted_lately": found.fast.preemptions,
        "preempted_share": found.slow.preemption_ratio,
    }
    return replace(found, **(preempted | fields))


def queue(length: float) -> dict[str, Any]:
    """Window fields of a steady queue."""
    return {"queue": steady(length), "waiting": steady(length), "queued_share": 1.0 if length else 0.0}
