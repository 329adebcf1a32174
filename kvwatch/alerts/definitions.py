"""Every alert kvwatch knows, once: name, severity, how long it must hold, when it holds and what it says.

`kvwatch.alerts.evaluation` evaluates these; ``rules/kvwatch.rules.yaml`` says the same in PromQL under names that begin with
`PROMETHEUS_PREFIX`, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kvwatch.alerts import conditions as when
from kvwatch.alerts import descriptions as says
from kvwatch.model import Severity

PROMETHEUS_PREFIX: Final = "KVWatch"
"""Alerts are called so in Prometheus and Alertmanager, whose names are shared with everybody else's."""

KEEP_SECONDS: Final = 15.0
"""How long a firing alert outlives its condition: a storm of one preemption in some seconds swings around its ratio, and a page that
ends and comes back is two pages."""

HOLD_SECONDS: Final = 60.0
"""How long a firing alert outlives its last evidence: a lost scrape in the middle of a storm is not the end of the storm.

It is every rule's ``keep_firing_for``. Prometheus cannot tell missing numbers from good ones, so there an alert always ends that
much later, which covers the time in which a restarted kvwatch fills its windows again.
"""


@dataclass(frozen=True, slots=True)
class AlertDefinition:
    """What all alerts have; ``for_seconds`` is how long the condition must hold without a break before the alert fires."""

    name: str
    severity: Severity
    for_seconds: float
    summary: str
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), kw_only=True)
    """Extra labels, beside the severity and those of the engine."""


@dataclass(frozen=True, slots=True)
class EngineAlert(AlertDefinition):
    """An alert about one engine."""

    condition: when.Condition = field(kw_only=True)
    describe: says.Description = field(kw_only=True)


ENGINE_ALERTS: Final = (
    EngineAlert(
        name="PreemptionStorm",
        severity=Severity.CRITICAL,
        for_seconds=0.0,  # the two windows are the smoothing
        summary="vLLM throws running requests off the GPU and computes them again.",
        labels=MappingProxyType({"priority": "P1"}),
        condition=when.storm,
        describe=says.storm,
    ),
    EngineAlert(
        name="EngineStalled",
        severity=Severity.CRITICAL,
        for_seconds=60.0,  # the first requests after a restart may compile kernels for most of a minute; a hung engine does not heal
        summary="A vLLM engine has work and no token comes out.",
        condition=when.stalled,
        describe=says.stalled,
    ),
    EngineAlert(
        name="KVBound",
        severity=Severity.WARNING,
        for_seconds=120.0,  # a burst that drains in two minutes needs nobody
        summary="The KV cache holds a vLLM engine back.",
        condition=when.kv_bound,
        describe=says.kv_bound,
    ),
    EngineAlert(
        name="KVScaleOut",
        severity=Severity.WARNING,
        for_seconds=900.0,  # an autoscaler had its chance: a new replica loads its model in minutes
        summary="The load has long been too much for the KV cache of one vLLM replica.",
        condition=when.scale_out,
        describe=says.scale_out,
    ),
    EngineAlert(
        name="ComputeBound",
        severity=Severity.WARNING,
        for_seconds=300.0,  # a busy accelerator is what was paid for; a queue that stays for five minutes is not
        summary="Requests wait for a vLLM engine's compute side or scheduler, not for its KV cache.",
        condition=when.compute_bound,
        describe=says.compute_bound,
    ),
    EngineAlert(
        name="LatencyObjectiveMissed",
        severity=Severity.WARNING,
        for_seconds=300.0,  # on top of the slow window: one bad burst is over by then
        summary="A latency objective of a vLLM engine is missed.",
        condition=when.latency_missed,
        describe=says.latency_missed,
    ),
    EngineAlert(
        name="WatcherBlind",
        severity=Severity.WARNING,
        for_seconds=300.0,  # warming up takes seconds; a restarted vLLM that nobody calls yet shows little for minutes
        summary="kvwatch cannot say how a vLLM engine is doing.",
        condition=when.blind,
        describe=says.blind,
    ),
)
TARGET_DOWN: Final = AlertDefinition(
    name="TargetDown",
    severity=Severity.WARNING,
    for_seconds=300.0,  # a restarted vLLM loads its weights for minutes before it serves /metrics
    summary="kvwatch cannot scrape vLLM.",
)
DEFINITIONS: Final[Mapping[str, AlertDefinition]] = MappingProxyType(
    {definition.name: definition for definition in (*ENGINE_ALERTS, TARGET_DOWN)}
)
"""Every alert by its name."""
