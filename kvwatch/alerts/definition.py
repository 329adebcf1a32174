"""What an alert is made of. Each alert is one file of this package, listed in `kvwatch.alerts.registry`.

`kvwatch.alerts.evaluation` evaluates the conditions; ``rules/kvwatch.rules.yaml`` is written from the same
definitions and waits on what it found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kvwatch.alerts.times import HOLD_SECONDS
from kvwatch.config.policy import Policy
from kvwatch.model import BaselineComparison, Change, Severity, Signals, Verdict

PROMETHEUS_PREFIX: Final = "KVWatch"
"""Alerts are called so in Prometheus and Alertmanager, whose names are shared with everybody else's."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an engine after one poll; ``signals`` are ``None`` where the poll failed."""

    policy: Policy
    verdict: Verdict
    signals: Signals | None
    advice: Sequence[Change] = ()
    baseline: BaselineComparison | None = None


Condition = Callable[[Facts], bool | None]
"""Whether it holds; ``None`` where its numbers were not seen, which is neither yes nor no."""
Description = Callable[[Facts], str]
"""What it says to the person it wakes; called only while its condition holds."""


@dataclass(frozen=True, slots=True)
class PrometheusRule:
    """The same for the rule file, which waits on the condition that kvwatch exposes."""

    comment: str
    """Why it is as it is."""
    description: str
    """Template of the text behind the engine's name."""
    first: str
    """Template of the first step."""
    expr: str = ""
    """The condition in PromQL where kvwatch cannot expose it."""
    waited: bool = False
    """Whether kvwatch does the waiting, by numbers that say more of the past than its conditions do."""


@dataclass(frozen=True, slots=True)
class AlertDefinition:
    """What all alerts have."""

    name: str
    severity: Severity
    for_seconds: float
    """How long the condition must hold without a break before the alert fires."""
    summary: str
    fires_when: str
    """The same as the README says it."""
    rule: PrometheusRule
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), kw_only=True)
    """Extra labels, beside the severity and those of the engine."""
    hold_seconds: float = field(default=HOLD_SECONDS, kw_only=True)
    """How long it goes on firing after its condition."""

    @property
    def prometheus_name(self) -> str:
        """Its name in Prometheus and Alertmanager, its heading in the runbook and the anchor there."""
        return PROMETHEUS_PREFIX + self.name


@dataclass(frozen=True, slots=True)
class EngineAlert(AlertDefinition):
    """An alert about one engine."""

    condition: Condition = field(kw_only=True)
    describe: Description = field(kw_only=True)
    seconds_before: Callable[[Facts], float] = field(default=lambda _facts: 0.0, kw_only=True)
    """For how long the numbers say that the condition has held already, where they do: polls that were lost then count too."""

    def seen(self, facts: Facts) -> tuple[bool | None, float]:
        """Whether the condition holds, and for how long it has already."""
        return self.condition(facts), self.seconds_before(facts)
