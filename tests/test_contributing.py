"""The lists "to add …" of CONTRIBUTING.md: a table that is incomplete fails here, with the place that lacks the row."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess

import pytest

import kvwatch
from kvwatch.advice.advise import LEVERS
from kvwatch.classifier import rules
from kvwatch.config.policy import KnownConfig, Objectives, Policy, Thresholds, Windows
from kvwatch.config.settings import Settings
from kvwatch.exporter.metrics.catalogue import FAMILIES
from kvwatch.model import CAUSES, COUNTERS, Cause, CounterTrait, Snapshot, State
from kvwatch.poller import names


def modules(package):
    """Every module below a package, imported."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def classes():
    """Every class of kvwatch with the module that defines it."""
    for module in modules(kvwatch):
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield name, module.__name__


@pytest.mark.parametrize("cause", [cause for state in State if state is not State.UNKNOWN for cause in CAUSES[state]])
def test_a_cause_has_a_rule_levers_and_words(cause, repository):
    sources = "".join(path.read_text() for path in (repository / "kvwatch" / "classifier").rglob("*.py"))
    assert f"Cause.{cause.name}" in sources
    assert cause in LEVERS
    assert cause.short_name
    assert cause.meaning.endswith(".")
    for page in ("how-it-decides", "advice"):
        assert f"`{cause}`" in (repository / "docs" / f"{page}.md").read_text(), page


@pytest.mark.parametrize("cause", [*CAUSES[State.KV_BOUND], *sorted(set(CAUSES[State.COMPUTE_BOUND]) - {Cause.STALLED})])
def test_the_runbook_says_what_to_do_about_a_cause(cause, repository):
    """But for a stalled engine, which has an alert, and so a heading, of its own."""
    assert f"`{cause}`" in (repository / "rules" / "RUNBOOK.md").read_text()


def test_every_rule_file_is_asked():
    helpers = {"numbers", "pressure", "queue"}
    files = {found.name for found in pkgutil.iter_modules(rules.__path__)} - helpers
    asked = {rule.judge.__module__.rsplit(".", 1)[-1] for rule in rules.PRECEDENCE}
    assert asked == files


@pytest.mark.parametrize("rule", rules.PRECEDENCE, ids=lambda rule: rule.cause)
def test_a_rule_says_which_numbers_it_looks_at(rule):
    assert f"Cause.{rule.cause.name}" in inspect.getsource(rule.judge)
    assert len(rule.numbers) >= 2
    assert all(one.name for one in rule.numbers)


def test_a_cause_belongs_to_one_state():
    assert sorted(cause for causes in CAUSES.values() for cause in causes) == sorted(Cause)


def test_every_signal_of_the_table_is_a_field_of_the_snapshot_and_the_other_way_round():
    fields = {field.name for field in dataclasses.fields(Snapshot)} - {"engine", "at", "created", "config"}
    assert {signal.name for signal in names.SIGNALS} == fields


def test_a_counter_says_what_it_is_good_for():
    kinds = {signal.name: signal.kind for signal in names.SIGNALS}
    for name, trait in COUNTERS.items():
        assert kinds[name] is not names.Kind.GAUGE, name
        assert isinstance(trait, CounterTrait), name


def test_a_setting_is_written_once():
    """No two groups of settings have a field of one name and one meaning, and the policy's groups are the daemon's."""
    assert {Settings.model_fields[name].annotation for name in ("window", "thresholds", "objectives", "vllm")} == {
        Windows,
        Thresholds,
        Objectives,
        KnownConfig,
    }
    assert set(Policy.model_fields) == {"window", "thresholds", "objectives"}


def test_every_setting_is_described_for_operators():
    for name, field in Settings.model_fields.items():
        group = field.annotation
        for setting, inner in getattr(group, "model_fields", {}).items():
            assert inner.description, f"{name}.{setting}"


def test_a_family_has_a_name_and_a_help():
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert all(family.help.endswith(".") for family in FAMILIES)


def test_no_class_name_stands_twice():
    found = {}
    for name, module in classes():
        found.setdefault(name, set()).add(module)
    assert {name: sorted(where) for name, where in found.items() if len(where) > 1 and not name.startswith("_")} == {}


def test_a_module_is_read_in_one_sitting_or_says_why(repository):
    longer = []
    for path in (repository / "kvwatch").rglob("*.py"):
        lines = path.read_text("utf-8").splitlines()
        if len(lines) > 250 and "One module, because" not in "\n".join(lines[:12]):
            longer.append((path.relative_to(repository).as_posix(), len(lines)))
    assert longer == []


def test_every_file_the_lists_name_is_there(repository):
    text = (repository / "CONTRIBUTING.md").read_text("utf-8")
    paths = {path for path in re.findall(r"`((?:kvwatch|tests|docs|rules)/[\w./-]+)`", text) if "NAME" not in path}
    assert len(paths) > 10
    assert sorted(path for path in paths if not (repository / path).exists()) == []


def test_the_hooks_of_pre_commit_are_the_checks_of_make_lint(repository):
    hooks = re.findall(r"entry: \.venv/bin/([^,]+),", (repository / ".pre-commit-config.yaml").read_text())
    recipe = subprocess.run(["make", "-n", "lint"], cwd=repository, capture_output=True, text=True, check=True).stdout
    assert hooks == re.findall(r"^\.venv/bin/(ruff [^\n]+|mypy[^\n]*|lint-imports)$", recipe, re.MULTILINE)
