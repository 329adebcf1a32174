"""README and docs name everything a user relies on, and nothing that is not there."""

from __future__ import annotations

import json
import re
import shlex
import tomllib

import pictures
import pytest
import yaml
from cast import cast, words
from pages_for_people import command_lines, commands_said, pages_for_people

from kvwatch.alerts.registry import DEFINITIONS, ONLY_PROMETHEUS
from kvwatch.commands.cli import COMMANDS, _parser
from kvwatch.config.settings import Settings
from kvwatch.errors import UsageError
from kvwatch.exporter.metrics.catalogue import FAMILIES
from kvwatch.exporter.metrics.telemetry import Telemetry
from kvwatch.model import CAUSES, Cause, State
from kvwatch.plan.options import Pool
from kvwatch.plan.plan import build_plan
from kvwatch.plan.render import render_json


@pytest.fixture(scope="module")
def docs():
    """Every page for people, by its path in the repository."""
    return pages_for_people()


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


def test_the_tables_of_a_plans_json_name_exactly_its_keys(docs):
    page = docs["docs/plan.md"].split("## `--format json`")[1]
    plan, option = (
        [key for row in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)]
        for table in page.split("Of each option:")
    )
    printed = json.loads(render_json(build_plan(Pool(5120, 4096, block_size=32), source="log", typical_tokens=500)))
    assert sorted(plan) == sorted(printed)
    assert sorted(option) == sorted(printed["options"][0])
    assert set(printed["options"][0]["lengths"][0]) == set(re.search(r"\| `lengths` \| `(\w+)` and `(\w+)`", page).groups())


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


def test_the_design_lists_the_packages_as_their_layers_are_enforced(docs, repository):
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [{one.strip() for one in layer.split("|")} for layer in contracts[0]["layers"]]
    rows = re.findall(r"^\| (`[^|]+) \|", docs["docs/design.md"].split("## Packages")[1].split("\n## ")[0], re.MULTILINE)
    assert [{name.removesuffix(".py") for name in re.findall(r"`([^`]+)`", row)} for row in rows] == layers


def test_the_files_a_line_of_a_scrape_goes_through_are_there(docs, repository):
    said = re.findall(r"`([a-z_]+/[\w./]*|[a-z_]+\.py)`", docs["docs/design.md"].split("Take `vllm:")[1].split("## Packages")[0])
    places = [repository / "kvwatch", repository, repository / "kvwatch" / "classifier" / "rules"]
    assert len(said) > 15
    assert [one for one in said if not any((place / one).exists() for place in places)] == []


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


def test_the_sample_in_the_readme_is_what_check_says_of_the_recording(docs):
    """``tests/pictures.py`` prints it anew, and makes the pictures."""
    sample = re.search(r"```\n\$ kvwatch check --for 30s --max-num-seqs 64\n(.*?)```", docs["README.md"], re.DOTALL)[1]
    said = pictures.sample().splitlines()
    assert [line for line in sample.splitlines() if line not in said] == []


def test_the_film_in_the_readme_is_what_the_demo_says(repository):
    """``python tests/pictures.py`` makes it."""
    assert words((repository / "docs" / "pictures" / "demo.svg").read_text("utf-8")) == words(cast())


def test_the_comparison_in_the_readme_is_that_of_the_figures(docs):
    def numbers(page, rule):
        return re.findall(rf"^ *\| {re.escape(rule)} \| (\d+ of \d+) \| (\d+ of \d+) \|$", docs[page], re.MULTILINE)

    for told, computed in {
        "cache above 95 % for a minute": "`vllm:kv_cache_usage_perc > 0.95` for 1m",
        "requests waiting for a minute": "`vllm:num_requests_waiting > 0` for 1m",
        "any preemption in two minutes": "`increase(vllm:num_preemptions_total[2m]) > 0`",
        "kvwatch": "kvwatch: `PreemptionStorm`",
    }.items():
        assert len(numbers("README.md", told)) == 1
        assert numbers("README.md", told) == numbers("docs/figures.md", computed)


def test_the_readme_is_a_door(docs):
    assert len(docs["README.md"].split()) <= 1000


def test_every_command_line_of_the_docs_is_one_the_parser_takes(docs):
    lines = [(page, line) for page, text in docs.items() for line in command_lines(text)]
    assert len(lines) >= 5
    refused = []
    for page, line in lines:
        words = shlex.split(re.sub(r"\[.*?\]", "", line))
        try:
            _parser(words[0] if words else None).parse_args(words)
        except UsageError as error:
            refused.append((page, line, str(error)))
        except SystemExit:  # --help and --version
            continue
    assert refused == []


def test_every_flag_said_of_a_command_is_one_of_its_flags(docs):
    unknown = []
    for page, text in docs.items():
        for said in commands_said(text):
            command = said.split()[0]
            if command not in COMMANDS:
                unknown.append((page, said, command))
                continue
            parser = _parser(command)._subparsers._group_actions[0].choices[command]
            flags = {flag for action in parser._actions for flag in action.option_strings}
            unknown += [(page, said, flag) for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*", said) if flag not in flags]
    assert unknown == []
