"""Writes kvwatch.rules.yaml from the alerts of `kvwatch.alerts`: `make generated`. A test fails while the result is not current."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Final

from kvwatch.alerts.definition import AlertDefinition, EngineAlert
from kvwatch.alerts.promql import active, condition
from kvwatch.alerts.registry import ENGINE_ALERTS, ONLY_PROMETHEUS, TARGET_DOWN
from kvwatch.alerts.times import EVIDENCE_SECONDS, HOLD_SECONDS

RULES: Final = Path(__file__).resolve().with_name("kvwatch.rules.yaml")
_FLEET: Final = RULES.with_name("fleet.part.yaml")
_HEAD: Final = f"""\
# Alerts and recording rules on kvwatch's own metrics. Made by `make generated` from kvwatch/alerts and fleet.part.yaml; change it there.
# Load this file as it is, or wrap its groups in a PrometheusRule.
#
# Before use:
# - The links lead to kvwatch's own page and runbook at the address Prometheus scrapes. Where people reach it elsewhere (a proxy, TLS),
#   replace http://{{{{ $labels.instance }}}}.
# - KVWatchDown looks for a scrape job whose name contains "kvwatch".
#
# The conditions, with their thresholds, are kvwatch's: one finding makes the state, the advice and the page. How long each must hold is
# said here. What was seen last stands for lost polls (in kvwatch_alert_condition) and for lost scrapes (last_over_time) until it is
# {EVIDENCE_SECONDS:.0f} s old. A warning goes on for {HOLD_SECONDS:.0f} s after its condition; a page ends with it.
groups:
  - name: kvwatch.alerts
    # Two scrapes a minute would add half a minute to a page.
    interval: 15s
    rules:
"""
_ENGINE: Final = """\
{{ $engine := printf "instance=%q,target=%q,model_name=%q,engine=%q" $labels.instance $labels.target $labels.model_name $labels.engine -}}
{{ with $labels.engine }}Engine {{ . }} of {{ $labels.model_name }}{{ else }}No engine known{{ end }} at {{ $labels.target }}"""
_POD: Final = '{{ if match "://(127[.]|localhost|[[]::1])" $labels.target }}{{ with $labels.pod }} (pod {{ . }}){{ end }}{{ end }}'
"""Prometheus' `pod` is kvwatch's own: it is the engine's only where kvwatch is its sidecar."""
_ANY_KVWATCH: Final = '{{ with query "up{job=~\\".*kvwatch.*\\"} == 1" }}http://{{ . | first | label "instance" }}'


def rule_of(alert: AlertDefinition) -> str:
    """One alerting rule."""
    lines = [f"- alert: {alert.prometheus_name}", *(f"  # {line}" for line in alert.rule.comment.splitlines())]
    waited = alert.rule.waited
    lines += ["  expr: |2", indent(alert.rule.expr or (active if waited else condition)(alert.name), "      ")]
    if alert.for_seconds and not waited:
        lines.append(f"  for: {_duration(alert.for_seconds)}")
    if alert.hold_seconds and alert not in ONLY_PROMETHEUS and not waited:
        lines.append(f"  keep_firing_for: {_duration(alert.hold_seconds)}")
    lines += ["  labels:", f"    severity: {alert.severity}", *(f"    {name}: {value}" for name, value in alert.labels.items())]
    lines += ["  annotations:", f"    summary: {alert.summary}", "    description: >-", indent(_description(alert), "      ")]
    lines += [f"    {name}: {value}" for name, value in _links(alert).items()]
    return "\n".join(lines) + "\n"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m" if not rest else f"{round(seconds)}s"


def _description(alert: AlertDefinition) -> str:
    text = f"{alert.rule.description}\nFirst: {alert.rule.first}"
    if isinstance(alert, EngineAlert):
        return f"{_ENGINE}{_POD}:\n{text}"
    if alert is TARGET_DOWN:
        return f"{{{{ $labels.target }}}}{_POD}:\n{text}"
    return text


def _links(alert: AlertDefinition) -> dict[str, str]:
    if alert in ONLY_PROMETHEUS:  # its own kvwatch cannot serve the runbook
        where = f"{_ANY_KVWATCH}/runbook#{alert.prometheus_name}{{{{ else }}}}RUNBOOK.md, beside the rules{{{{ end }}}}"
        return {"runbook_url": f"'{where}'"}
    return {
        "runbook_url": f"http://{{{{ $labels.instance }}}}/runbook#{alert.prometheus_name}",
        "status_url": "http://{{ $labels.instance }}/",
    }


def rules() -> Iterator[str]:
    """The text of the rule file, piece by piece."""
    yield _HEAD
    yield "\n".join(indent(rule_of(alert), "      ") for alert in (*ENGINE_ALERTS, TARGET_DOWN, *ONLY_PROMETHEUS))
    yield "\n"
    yield _FLEET.read_text(encoding="utf-8")


def main() -> int:
    """Write the rule file."""
    RULES.write_text("".join(rules()), encoding="utf-8")
    sys.stdout.write(f"wrote {RULES.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
