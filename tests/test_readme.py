"""The README names everything a user relies on, and nothing that is not there."""

from __future__ import annotations

import re

import pytest
import yaml

from kvwatch.alerts.definitions import DEFINITIONS
from kvwatch.commands.cli import COMMANDS
from kvwatch.config.settings import Settings
from kvwatch.exporter.metrics.catalogue import FAMILIES
from kvwatch.exporter.metrics.telemetry import Telemetry
from kvwatch.model import CAUSES, Cause, State


@pytest.fixture(scope="module")
def readme(repository):
    return (repository / "README.md").read_text("utf-8")


def families():
    """Every metric name kvwatch exports of itself and of its targets, as scraped."""
    own = {family.name: family.type for family in Telemetry().registry.collect() if family.name.startswith("kvwatch_")}
    derived = {family.name: family.kind for family in FAMILIES}
    return {f"{name}_total" if kind == "counter" else name for name, kind in (own | derived).items()}


def test_every_metric_is_in_the_table_and_every_metric_there_exists(readme):
    section = readme.split("## Metrics")[1].split("## Configuration")[0]
    assert set(re.findall(r"`(kvwatch_[a-z0-9_]+)`", section)) == families()


def test_every_command_is_in_the_table(readme):
    assert {name for name in COMMANDS if f"| `kvwatch {name}" not in readme} == set()


def test_every_state_and_cause_is_in_the_table(readme):
    section = readme.split("## States and causes")[1].split("### The preemption ratio")[0]
    assert {word for word in (*State, *Cause) if f"`{word}`" not in section} == set()
    assert sum(len(causes) for causes in CAUSES.values()) == len(Cause)


def test_every_alert_is_in_the_table_with_its_severity(readme):
    for definition in DEFINITIONS.values():
        assert re.search(rf"\| `{definition.name}` \| {definition.severity}", readme), definition.name


def test_the_example_configuration_is_one(readme):
    example = re.search(r"```yaml\n(.*?)```", readme, re.DOTALL)[1]
    settings = Settings(**yaml.safe_load(example))
    assert [target.name for target in settings.targets] == ["llama-a", "dns+http://vllm-pods.models.svc:8000/metrics"]


def test_every_relative_link_leads_somewhere(readme, repository):
    links = re.findall(r"\]\(([^)#:]+)\)", readme)
    assert links
    assert [link for link in links if not (repository / link).exists()] == []
