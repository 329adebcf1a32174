"""The rules as Prometheus reads them, and that they say what kvwatch itself says."""

from __future__ import annotations

import re
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kvwatch.alerts.registry import DEFINITIONS, ONLY_PROMETHEUS
from kvwatch.config.values import parse_duration

RULES: Final = Path(__file__).resolve().parents[2] / "rules"
RULE_FILE: Final = RULES / "kvwatch.rules.yaml"
RULE_TESTS: Final = sorted((RULES / "tests").glob("*.yaml"))
GROUPS: Final = {group["name"]: group for group in yaml.safe_load(RULE_FILE.read_text())["groups"]}
ALERTS: Final[dict[str, dict[str, Any]]] = {rule["alert"]: rule for rule in GROUPS["kvwatch.alerts"]["rules"]}
EVERY: Final = {alert.prometheus_name: alert for alert in (*DEFINITIONS.values(), *ONLY_PROMETHEUS)}
HEADINGS: Final = ["What it means", "What users feel", "Check first", "Do now", "Do later", "How to silence"]


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=60)


def seconds(duration: str | None) -> float:
    return 0.0 if duration is None else parse_duration(duration)


def test_promtool_accepts_the_rules(require_tool: Callable[[str], Path]) -> None:
    result = run(require_tool("promtool"), "check", "rules", RULE_FILE)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_promtool_finds_every_alert_firing_when_and_as_it_should(path: Path, require_tool: Callable[[str], Path]) -> None:
    result = run(require_tool("promtool"), "test", "rules", path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_is_tested_both_silent_and_firing() -> None:
    cases = [case for path in RULE_TESTS for test in yaml.safe_load(path.read_text())["tests"] for case in test.get("alert_rule_test", [])]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == set(ALERTS)
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == set(ALERTS)


def test_the_rule_file_is_current() -> None:
    made = runpy.run_path(str(RULES / "build.py"))["rules"]()
    assert RULE_FILE.read_text() == "".join(made), "run `make generated`"


def test_every_alert_has_a_rule() -> None:
    assert list(ALERTS) == list(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_a_rule_has_the_severity_labels_summary_and_times_of_its_alert(name: str) -> None:
    alert, rule = EVERY[name], ALERTS[name]
    assert rule["labels"] == {"severity": alert.severity.value, **alert.labels}
    assert rule["annotations"]["summary"] == alert.summary
    if alert.rule.waited:
        assert not {"for", "keep_firing_for"} & set(rule)
        return
    assert seconds(rule.get("for")) == alert.for_seconds
    assert seconds(rule.get("keep_firing_for")) == (0.0 if alert in ONLY_PROMETHEUS else alert.hold_seconds)


@pytest.mark.parametrize(
    "rule", [rule for group in GROUPS.values() for rule in group["rules"]], ids=lambda rule: rule.get("alert") or rule["record"]
)
def test_rules_read_only_kvwatchs_own_metrics(rule: dict[str, Any]) -> None:
    expression = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", rule["expr"])
    expression = re.sub(r"(?:by|without|ignoring|on) ?\([^)]*\)", "", expression)
    metrics = set(re.findall(r"[a-z_]+:?\w+(?::\w+)*", expression)) - {
        "max", "avg", "sum", "count", "and", "or", "unless", "absent", "bool", "last_over_time", "avg_over_time",
    }  # fmt: skip
    allowed = {"up"} if rule.get("alert") == "KVWatchDown" else set()
    assert metrics
    assert all(re.match(r"(?:\w+:)?kvwatch_", metric) for metric in metrics - allowed), metrics


@pytest.mark.parametrize("rule", ALERTS.values(), ids=ALERTS)
def test_every_alert_says_what_it_is_what_to_do_first_and_where_to_read_on(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    assert set(annotations) - {"status_url"} == {"summary", "description", "runbook_url"}
    assert f"/runbook#{rule['alert']}" in annotations["runbook_url"]
    assert annotations.get("status_url") == (None if rule["alert"] == "KVWatchDown" else "http://{{ $labels.instance }}/")
    assert "{{" not in annotations["summary"]
    assert annotations["summary"].endswith(".")
    assert " First: " in annotations["description"]


def test_a_text_calls_a_pod_the_engines_only_where_kvwatch_is_its_sidecar() -> None:
    for name, rule in ALERTS.items():
        if name != "KVWatchDown":
            assert re.findall(r"[^}]*{{ with \$labels.pod }}", rule["annotations"]["description"]) == ["{{ with $labels.pod }}"]
            assert (
                '{{ if match "://(127[.]|localhost|[[]::1])" $labels.target }}{{ with $labels.pod }}' in rule["annotations"]["description"]
            )


def test_the_runbook_has_one_section_per_alert_with_the_same_headings() -> None:
    sections = re.split(r"^## ", (RULES / "RUNBOOK.md").read_text(), flags=re.MULTILINE)[1:]
    found = {section.splitlines()[0]: re.findall(r"^### (.*)$", section, flags=re.MULTILINE) for section in sections}
    assert len(found) == len(sections)
    assert found == dict.fromkeys(ALERTS, HEADINGS)


def test_no_section_of_the_runbook_is_empty() -> None:
    text = (RULES / "RUNBOOK.md").read_text()
    parts = re.split(r"^### .*$", text, flags=re.MULTILINE)[1:]
    assert len(parts) == len(HEADINGS) * len(ALERTS)
    assert all(len(re.split(r"^## ", part, flags=re.MULTILINE)[0].strip()) > 5 for part in parts)


def test_a_silence_of_the_runbook_names_all_that_tells_one_engine_from_another() -> None:
    """`target` does not: every sidecar's is http://127.0.0.1:8000/metrics."""
    found = re.findall(r"`amtool silence add (.*?) --duration", (RULES / "RUNBOOK.md").read_text())
    silences = {matchers.split()[0].partition("=")[2]: dict(re.findall(r' (\w+)="<(\w+)>"', matchers)) for matchers in found}
    place = {"namespace", "pod", "instance"}
    named = dict.fromkeys(ALERTS, place | {"target", "model_name", "engine"})
    named |= {"KVWatchTargetDown": place | {"target"}, "KVWatchDown": place | {"job"}}
    assert silences == {alert: {label: label for label in labels} for alert, labels in named.items()}
