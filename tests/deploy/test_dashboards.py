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

from kvwatch.alerts.registry import DEFINITIONS
from kvwatch.exporter.metrics.catalogue import FAMILIES
from kvwatch.exporter.metrics.telemetry import Telemetry
from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.load import ClosedLoop, parse_lengths
from kvwatch.simulator.simulation import Simulation

NAMES = ("kvwatch-fleet", "kvwatch-engine")
OPTIONAL_OF_VLLM = {
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:nixl_bytes_transferred_sum",
    "vllm:nixl_xfer_time_seconds_bucket",
    "vllm:nixl_num_failed_transfers_total",
    "vllm:nixl_num_kv_expired_reqs_total",
}
"""Of vLLM 0.32 with speculative decoding and with NIXL, as its v1/spec_decode/metrics.py and kv_connector/v1/nixl/stats.py name them."""
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
    """They drop what they do not know: ``definition``, and what an annotation says to the Prometheus data source alone."""
    register_default_plugins()

    def through_the_types(one: dict[str, Any]) -> dict[str, Any]:
        return json.loads(JSONEncoder().encode(Dashboard.from_json(one)))

    of_prometheus = {f".annotations.list[].{field}" for field in ("step", "titleFormat", "textFormat", "useValueForTime")}
    of_prometheus |= {f".annotations.list[].target.{field}" for field in ("refId", "expr", "interval", "range", "instant")}
    assert lost(dashboard, through_the_types(dashboard)) - of_prometheus == {".templating.list[].definition"}
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


def test_every_selector_is_narrowed_to_the_chosen_kvwatch_or_to_the_chosen_model_of_vllm(dashboard, expressions):
    annotated = [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    assert len(annotated) == 1
    for expression in [*expressions, *annotated]:
        selectors = re.findall(r"\b((?:kvwatch_|vllm:)[a-z0-9_]+)(\{[^}]*\})?", expression)
        assert selectors
        for metric, selector in selectors:
            labels = (
                ("namespace", "pod", "model_name", "engine", "vllm")
                if metric.startswith("vllm:")
                else ("job", "namespace", "pod", "instance")
            )
            missing = [label for label in labels if f'{"instance" if label == "vllm" else label}=~"${label}"' not in selector]
            assert missing == [], expression


def test_every_variable_that_is_used_is_defined(dashboard, expressions):
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    queries = [variable.get("definition", "") for variable in dashboard["templating"]["list"]]
    used = set(itertools.chain.from_iterable(re.findall(r"\$([a-z]\w+)", text) for text in [*expressions, *queries]))
    assert used <= defined
    assert used >= {"job", "namespace", "pod", "instance", "model_name"}


def links_of(panel: dict[str, Any]) -> dict[str, str]:
    return {link["title"]: link["url"] for link in panel["fieldConfig"]["defaults"].get("links", [])}


def test_links_choose_by_variables_of_the_dashboard_they_lead_to(repository, panels):
    engine = json.loads((repository / "deploy/grafana/kvwatch-engine.json").read_text())
    known = {variable["name"] for variable in engine["templating"]["list"]}
    for panel in panels:
        url = links_of(panel).get("This engine", "")
        named = {*re.findall(r"\bvar-(\w+)=", url), *re.findall(r"\$\{(\w+):queryparam\}", url)}
        assert named <= known, panel["title"]
        assert not url or url.startswith("/d/kvwatch-engine?${__url_time_range}&")


def test_links_read_labels_that_the_series_of_their_panel_have(panels):
    """Aggregated away, a label would be an empty word in the address."""
    linked = [panel for panel in panels if links_of(panel)]
    assert linked
    for panel in linked:
        style = "__data.fields" if panel["type"] == "table" else "__field.labels"
        read = set(re.findall(rf"\$\{{{style}\.(\w+)", " ".join(links_of(panel).values())))
        assert "instance" in read
        assert not re.search(r"__(?:data|field)\.", " ".join(links_of(panel).values()).replace(style, ""))
        for target in panel["targets"]:
            for kept in re.findall(r"^(?:sum|max|avg) by \(([^)]*)\)", target["expr"]):
                assert read <= set(kept.split(", ")), panel["title"]
        hidden = {name for one in panel["transformations"] if one["id"] == "organize" for name in one["options"]["excludeByName"]}
        assert not read & hidden, "a link of a table reads the columns that are there"


def test_an_alert_leads_to_its_heading_in_the_runbook(repository, panels):
    runbook = (repository / "rules" / "RUNBOOK.md").read_text()
    alerts = [panel for panel in panels if any("kvwatch_alert_active" in target["expr"] for target in panel["targets"]) and links_of(panel)]
    assert len(alerts) == 1
    heading = links_of(alerts[0])["Runbook"].split("#")[1]
    for alert in DEFINITIONS.values():
        anchor = re.sub(r"\$\{__\w+\.\w+\.alert:raw\}", alert.name, heading)
        assert f"\n## {anchor}\n" in runbook


def test_counters_are_shown_as_rates(expressions):
    for expression in expressions:
        for counter in re.finditer(r"\bkvwatch_[a-z0-9_]+_total\b", expression):
            assert re.search(r"(rate|increase)\($", expression[: counter.start()]), expression
    ranges = set(re.findall(r"\[([^\]]+)\]", " ".join(expressions)))
    assert ranges <= {"$__rate_interval", "$__range"}


def test_every_metric_is_one_that_kvwatch_or_vllm_has(expressions):
    own = {sample for family in Telemetry().registry.collect() for sample in (family.name, f"{family.name}_total")}
    known = {f"{family.name}_total" if family.kind == "counter" else family.name for family in FAMILIES} | own
    used = {name for expression in expressions for name in METRIC.findall(expression)}
    assert used - known == set()
    simulated = expose(Simulation(ServerConfig(), ClosedLoop(1, parse_lengths("10"), parse_lengths("10")), start_unix=0))
    of_vllm = set(re.findall(r"^(vllm:\w+)", simulated, re.MULTILINE)) | OPTIONAL_OF_VLLM
    assert {name for expression in expressions for name in re.findall(r"\bvllm:\w+", expression)} - of_vllm == set()


def test_the_panels_do_not_cover_one_another(dashboard):
    cells: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])):
            assert cell not in cells, f"{panel['title']} covers {cells[cell]}"
            cells[cell] = panel["title"]


def test_it_leads_to_the_other_dashboard_and_from_one_kvwatch_to_its_page_and_runbook(dashboard):
    [other] = [name for name in NAMES if name != dashboard["uid"]]
    one = {variable["name"] for variable in dashboard["templating"]["list"] if not variable["multi"]}
    own = {"http://${instance}/", "http://${instance}/runbook"} if "instance" in one else set()
    assert {link["url"] for link in dashboard["links"]} == {f"/d/{other}", *own}
    assert bool(own) == (dashboard["uid"] == "kvwatch-engine"), "an address of several is none"
