"""The dashboards are current, follow Grafana's conventions, and ask only for metrics that kvwatch has."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from kvwatch.exporter.metrics.catalogue import FAMILIES
from kvwatch.exporter.metrics.telemetry import Telemetry

NAMES = ("kvwatch-fleet", "kvwatch-engine")
METRIC = re.compile(r"\bkvwatch_[a-z0-9_]+\b")


@pytest.fixture(scope="module", params=NAMES)
def dashboard(request, repository) -> dict[str, Any]:
    return json.loads((repository / "deploy" / "grafana" / f"{request.param}.json").read_text())


@pytest.fixture
def panels(dashboard) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


@pytest.fixture
def expressions(panels) -> list[str]:
    return [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_dashboard_is_what_the_code_builds(repository, tmp_path, name):
    for part in ("deploy/grafana", "rules"):
        shutil.copytree(repository / part, tmp_path / part, ignore=shutil.ignore_patterns("*.json"))
    subprocess.run([sys.executable, tmp_path / "deploy/grafana/build.py"], check=True, capture_output=True)
    built = (tmp_path / "deploy/grafana" / f"{name}.json").read_text()
    assert built == (repository / "deploy/grafana" / f"{name}.json").read_text(), "run `make generated`"


def lost(given: Any, kept: Any, path: str = "") -> set[str]:
    """Paths of what is in *given* and not in *kept*."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return {fault for key, value in given.items() for fault in lost(value, kept.get(key), f"{path}.{key}")}
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return {fault for one, other in zip(given, kept, strict=True) for fault in lost(one, other, f"{path}[]")}
    return set() if kept is not None or given in (None, [], {}) else {path}


def test_grafana_s_own_types_have_every_field(dashboard):
    """They drop what they do not know. ``definition`` is Grafana's, and not in its published types."""
    register_default_plugins()

    def through_the_types(one: dict[str, Any]) -> dict[str, Any]:
        return json.loads(JSONEncoder().encode(Dashboard.from_json(one)))

    assert lost(dashboard, through_the_types(dashboard)) == {".templating.list[].definition"}
    wrong = {**dashboard, "graphToolTip": 1}
    assert ".graphToolTip" in lost(wrong, through_the_types(wrong))


def test_it_can_be_provisioned_from_a_file_and_found_again(dashboard):
    assert dashboard["uid"] in NAMES
    assert (dashboard["id"], dashboard["editable"]) == (None, False)
    assert {"kvwatch", "vllm"} <= set(dashboard["tags"])
    assert "__inputs" not in dashboard
    assert dashboard["description"]


def test_every_panel_has_a_title_a_description_and_a_unit(panels):
    assert panels
    for panel in panels:
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)


def test_every_query_goes_to_the_chosen_data_source(dashboard, panels):
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    source = {"type": "prometheus", "uid": "${datasource}"}
    asked = [panel["datasource"] for panel in panels] + [target["datasource"] for panel in panels for target in panel["targets"]]
    asked += [variable["datasource"] for variable in variables.values() if variable["type"] == "query"]
    assert all(one == source for one in asked)


def test_every_selector_is_narrowed_to_the_chosen_kvwatch(expressions):
    for expression in expressions:
        selectors = re.findall(r"\bkvwatch_[a-z0-9_]+(\{[^}]*\})?", expression)
        assert selectors
        for selector in selectors:
            assert 'job=~"$job"' in selector, expression
            assert 'instance=~"$instance"' in selector, expression


def test_every_variable_that_is_used_is_defined(dashboard, expressions):
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    queries = [variable.get("definition", "") for variable in dashboard["templating"]["list"]]
    used = set(itertools.chain.from_iterable(re.findall(r"\$([a-z]\w+)", text) for text in [*expressions, *queries]))
    assert used <= defined
    assert used >= {"job", "instance", "model_name"}


def test_counters_are_shown_as_rates(expressions):
    for expression in expressions:
        for counter in re.finditer(r"\bkvwatch_[a-z0-9_]+_total\b", expression):
            assert re.search(r"(rate|increase)\($", expression[: counter.start()]), expression
    ranges = set(re.findall(r"\[([^\]]+)\]", " ".join(expressions)))
    assert ranges <= {"$__rate_interval", "$__range"}


def test_every_metric_is_one_that_kvwatch_has(expressions):
    own = {sample for family in Telemetry().registry.collect() for sample in (family.name, f"{family.name}_total")}
    known = {f"{family.name}_total" if family.kind == "counter" else family.name for family in FAMILIES} | own
    used = {name for expression in expressions for name in METRIC.findall(expression)}
    assert used - known == set()


def test_the_panels_do_not_cover_one_another(dashboard):
    cells: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])):
            assert cell not in cells, f"{panel['title']} covers {cells[cell]}"
            cells[cell] = panel["title"]


def test_it_leads_to_the_other_dashboard_and_to_the_runbook_kvwatch_serves(dashboard):
    [other] = [name for name in NAMES if name != dashboard["uid"]]
    assert {link["url"] for link in dashboard["links"]} == {f"/d/{other}", "http://${instance}/runbook"}
