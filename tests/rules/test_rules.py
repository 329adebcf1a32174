"""The rules as Prometheus reads them, and that they say what kvwatch itself says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kvwatch.alerts.definitions import DEFINITIONS, HOLD_SECONDS, KEEP_SECONDS, PROMETHEUS_PREFIX
from kvwatch.config.policy import Policy
from kvwatch.config.values import parse_duration

RULES: Final = Path(__file__).resolve().parents[2] / "rules"
RULE_FILE: Final = RULES / "kvwatch.rules.yaml"
RULE_TESTS: Final = sorted((RULES / "tests").glob("*.yaml"))
GROUPS: Final = {group["name"]: group for group in yaml.safe_load(RULE_FILE.read_text())["groups"]}
ALERTS: Final[dict[str, dict[str, Any]]] = {rule["alert"]: rule for rule in GROUPS["kvwatch.alerts"]["rules"]}
ONLY_PROMETHEUS: Final = {"KVWatchDown"}  # a dead kvwatch cannot say so
WAITED_BY_KVWATCH: Final = {"KVWatchLatencyObjectiveMissed"}  # it reads kvwatch_alert_active, behind which the waiting is already done
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


def test_prometheus_and_kvwatch_know_the_same_alerts() -> None:
    assert set(ALERTS) - ONLY_PROMETHEUS == {PROMETHEUS_PREFIX + name for name in DEFINITIONS}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_rule_has_the_severity_labels_summary_and_times_of_its_definition(name: str) -> None:
    definition, rule = DEFINITIONS[name], ALERTS[PROMETHEUS_PREFIX + name]
    assert rule["labels"] == {"severity": definition.severity.value, **definition.labels}
    assert rule["annotations"]["summary"] == definition.summary
    assert seconds(rule.get("for")) == (0.0 if rule["alert"] in WAITED_BY_KVWATCH else definition.for_seconds)
    assert seconds(rule["keep_firing_for"]) == HOLD_SECONDS > KEEP_SECONDS


def test_the_storm_rule_has_the_default_thresholds() -> None:
    policy = Policy()
    assert re.findall(r"(>=?) ([\d.]+)", ALERTS["KVWatchPreemptionStorm"]["expr"]) == [
        (">", f"{policy.thresholds.storm_ratio:.2f}"),
        (">", f"{policy.thresholds.storm_ratio:.2f}"),
        (">=", str(policy.thresholds.storm_min_preemptions)),
    ]


@pytest.mark.parametrize(
    "rule", [rule for group in GROUPS.values() for rule in group["rules"]], ids=lambda rule: rule.get("alert") or rule["record"]
)
def test_rules_read_only_kvwatchs_own_metrics(rule: dict[str, Any]) -> None:
    expression = re.sub(r"\{[^}]*\}", "", rule["expr"])
    expression = re.sub(r"(?:by|without|ignoring|on) ?\([^)]*\)", "", expression)
    metrics = set(re.findall(r"[a-z_]+:?\w+(?::\w+)*", expression)) - {"max", "sum", "and", "or", "unless", "absent"}
    allowed = {"up"} if rule.get("alert") in ONLY_PROMETHEUS else set()
    assert metrics
    assert all(re.match(r"(?:\w+:)?kvwatch_", metric) for metric in metrics - allowed), metrics


@pytest.mark.parametrize("rule", ALERTS.values(), ids=ALERTS)
def test_every_alert_has_its_three_annotations_from_one_pattern(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert annotations["runbook_url"] == f"https://runbooks.example.com/kvwatch#{rule['alert'].lower()}"
    assert "{{" not in annotations["summary"]
    assert annotations["summary"].endswith(".")
    assert " First: " in annotations["description"]


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
