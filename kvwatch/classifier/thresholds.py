"""The numbers a judgement needs that are policy, not physics. All but `recent_window` and `warm_up_seconds` are settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Policy of the classifier; times in seconds, ratios 0..1."""

    recent_window: float = 15.0
    fast_window: float = 30.0
    slow_window: float = 120.0
    kv_watermark: float = 0.90
    stall_seconds: float = 10.0
    """No sign of life at all while there is work."""
    silence_seconds: float = 60.0
    """No token out while there is work, even though the engine still steps."""
    warm_up_seconds: float = 8.0
