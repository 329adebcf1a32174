"""Every alert, by what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kvwatch.alerts import (
    baseline_regressed,
    compute_bound,
    engine_stalled,
    kv_bound,
    kv_scale_out,
    kvwatch_down,
    latency_objective_missed,
    preemption_storm,
    target_down,
    watcher_blind,
)
from kvwatch.alerts.definition import AlertDefinition

ENGINE_ALERTS: Final = (
    preemption_storm.ALERT,
    engine_stalled.ALERT,
    kv_bound.ALERT,
    kv_scale_out.ALERT,
    compute_bound.ALERT,
    latency_objective_missed.ALERT,
    baseline_regressed.ALERT,
    watcher_blind.ALERT,
)
TARGET_DOWN: Final = target_down.ALERT
DEFINITIONS: Final[Mapping[str, AlertDefinition]] = MappingProxyType({alert.name: alert for alert in (*ENGINE_ALERTS, TARGET_DOWN)})
"""Every alert that kvwatch raises itself, by its name."""
ONLY_PROMETHEUS: Final = (kvwatch_down.ALERT,)
"""What a dead kvwatch cannot say."""
