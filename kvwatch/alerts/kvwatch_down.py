"""``Down``: kvwatch itself is gone. Only Prometheus can say so."""

from __future__ import annotations

from typing import Final

from kvwatch.alerts.definition import AlertDefinition, PrometheusRule
from kvwatch.model import Severity

ALERT: Final = AlertDefinition(
    name="Down",
    severity=Severity.WARNING,
    for_seconds=240.0,  # after most of a minute
    summary="kvwatch itself is gone.",
    fires_when="Prometheus does not reach a kvwatch for five minutes, or knows none (in Prometheus only)",
    rule=PrometheusRule(
        comment="A sidecar that is still discovered and does not answer most of the time; or none at all. A pod that was scaled away is\n"
        "neither. Long enough for a rollout, and for Prometheus to find its targets again after a restart of its own.",
        expr='avg_over_time(up{job=~".*kvwatch.*"}[1m]) <= 0.25 and up{job=~".*kvwatch.*"}\nor\nabsent(up{job=~".*kvwatch.*"})',
        description="""\
{{ with $labels.instance }}Prometheus has not reached kvwatch at {{ . }}{{ with $labels.pod }} (pod {{ . }}){{ end }} for five minutes
{{- else }}Prometheus knows no kvwatch at all{{ end }}, so nobody watches its vLLM.""",
        first="see whether the container runs and what its log says last.",
    ),
)
