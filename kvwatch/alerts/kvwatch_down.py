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
    fires_when="Prometheus does not reach a kvwatch for five minutes, knows none, or fewer than there are shards (in Prometheus only)",
    rule=PrometheusRule(
        comment="A kvwatch that is still discovered and does not answer most of the time; none at all; or a shard that is not even\n"
        "discovered, because its pod never came up. A pod that was scaled away is none of these. Long enough for a rollout, and\n"
        "for Prometheus to find its targets again after a restart of its own.",
        expr="""\
avg_over_time(up{job=~".*kvwatch.*"}[1m]) <= 0.25 and up{job=~".*kvwatch.*"}
or
absent(up{job=~".*kvwatch.*"})
or
count by (cluster, namespace, job) (count by (cluster, namespace, job, shard) (kvwatch_shards > 1))
  < max by (cluster, namespace, job) (kvwatch_shards)
  unless on (cluster, namespace, job) up{job=~".*kvwatch.*"} == 0""",
        description="""\
{{ if $labels.instance }}Prometheus has not reached kvwatch at {{ $labels.instance }}{{ with $labels.pod }} (pod {{ . }}){{ end }} for
five minutes, so nobody watches its vLLM.
{{- else if $labels.job }}Prometheus knows only {{ $value }} of the kvwatches of job {{ $labels.job }} that share their targets, so nobody
watches those of the others.
{{- else }}Prometheus knows no kvwatch at all, so nobody watches vLLM.{{ end }}""",
        first="see whether the container runs and what its log says last.",
    ),
)
