"""README and docs name everything a user relies on, and nothing that is not there."""

from __future__ import annotations

import re

import pytest
import yaml

from kvwatch.alerts.registry import DEFINITIONS, ONLY_PROMETHEUS
from kvwatch.commands.cli import COMMANDS
from kvwatch.config.settings import Settings
from kvwatch.exporter.metrics.catalogue import FAMILIES
from kvwatch.exporter.metrics.telemetry import Telemetry
from kvwatch.model import CAUSES, Cause, State


@pytest.fixture(scope="module")
def docs(repository):
    """Every page for people, by its path in the repository."""
    pages = [
        *repository.glob("*.md"),
        *(repository / "docs").glob("*.md"),
        *(repository / "deploy").rglob("*.md"),
        repository / "rules" / "RUNBOOK.md",
    ]
    return {path.relative_to(repository).as_posix(): path.read_text("utf-8") for path in pages}


def families():
    """Every metric name kvwatch exports of itself and of its targets, as scraped."""
    own = {family.name: family.type for family in Telemetry().registry.collect() if family.name.startswith("kvwatch_")}
    derived = {family.name: family.kind for family in FAMILIES}
    return {f"{name}_total" if kind == "counter" else name for name, kind in (own | derived).items()}


def test_every_metric_is_in_the_table_and_every_metric_there_exists(docs):
    assert set(re.findall(r"`(kvwatch_[a-z0-9_]+)`", docs["docs/metrics.md"])) == families()


def test_every_command_is_in_the_table(docs):
    assert {name for name in COMMANDS if f"| `kvwatch {name}" not in docs["README.md"]} == set()


def test_every_state_and_cause_is_in_the_table(docs):
    section = docs["docs/how-it-decides.md"].split("## How it tells them apart")[0]
    assert {word for word in (*State, *Cause) if f"`{word}`" not in section} == set()
    assert sum(len(causes) for causes in CAUSES.values()) == len(Cause)


def test_the_table_of_alerts_is_what_the_alerts_say_of_themselves(docs):
    rows = [
        f"| `{alert.name}` | {', '.join((alert.severity, *alert.labels.values()))} | {alert.fires_when} |"
        for alert in (*DEFINITIONS.values(), *ONLY_PROMETHEUS)
    ]
    table = docs["docs/alerts.md"].split("|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert table == rows


def test_the_example_configuration_is_one(docs):
    example = re.search(r"```yaml\n(.*?)```", docs["docs/configuration.md"], re.DOTALL)[1]
    settings = Settings(**yaml.safe_load(example))
    assert [target.name for target in settings.targets] == ["llama-a", "dns+http://vllm-pods.models.svc:8000/metrics"]


def test_every_relative_link_leads_somewhere(docs, repository):
    for page, text in docs.items():
        links = re.findall(r"\]\(([^)#:]+)\)", text)
        assert [link for link in links if not ((repository / page).parent / link).exists()] == [], page
    assert "](docs/design.md)" in docs["README.md"]


def test_the_glossary_is_short(docs):
    """A newcomer learns at most twenty words."""
    words = re.findall(r"^\| ([^|]+) \|", docs["docs/design.md"].split("## Words")[1].split("\n## ")[0], re.MULTILINE)[2:]
    assert 10 <= len(words) <= 20


def test_the_fleet_page_lists_every_recorded_series(docs, repository):
    groups = yaml.safe_load((repository / "rules" / "kvwatch.rules.yaml").read_text())["groups"]
    recorded = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    table = docs["docs/fleet.md"].split("## Recorded series")[1].split("```")[0]
    assert set(re.findall(r"`(\w+:\w+:\w+)`", table)) == recorded


def test_the_fleet_page_adds_up(docs):
    page = docs["docs/fleet.md"]
    engine, target, own = (int(found) for found in re.findall(r"^\| of .+ \| (\d+)[:| ]", page, re.MULTILINE))
    for line in re.findall(r"\| (\d+): (.+) \|$", page, re.MULTILINE):
        assert int(line[0]) == sum(int(part) for part in re.findall(r" (\d+)", line[1]))
    assert f"300 × ({engine} + {target}) + {own} = **{300 * (engine + target) + own:,} series**".replace(",", " ") in page
    assert f"300 × ({engine} + {target} + {own}) = {300 * (engine + target + own):,}.".replace(",", " ") in page
