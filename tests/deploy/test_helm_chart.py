"""The chart, as Helm lints and renders it, for a matrix of values: Kubernetes, the operator, Prometheus and kvwatch take what it makes."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import kubernetes_validate
import pytest
import yaml

import kvwatch
from kvwatch.config.settings import Settings
from kvwatch.config.values import parse_shard

KUBERNETES_VERSIONS = ("1.29", "1.33", "1.37")
VALUES = {"defaults": None, **{path.stem: path for path in sorted(Path(__file__).with_name("helm_values").glob("*.yaml"))}}
CUSTOM = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}


def values_of(name: str) -> dict[str, Any]:
    path = VALUES[name]
    return {} if path is None else yaml.safe_load(path.read_text())


def manifests_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    assert "error" not in answer, answer
    files = {name: text for name, text in answer["files"].items() if not name.endswith(".txt")}
    return [manifest for text in files.values() for manifest in yaml.safe_load_all(text) if manifest]


@pytest.fixture(scope="module", params=VALUES)
def rendered(request, helm):
    """Name of the values, the values, and the manifests Helm makes of them."""
    values = values_of(request.param)
    return request.param, values, manifests_of(helm("render", values))


def one(manifests: list[dict[str, Any]], *kinds: str) -> dict[str, Any]:
    [found] = [manifest for manifest in manifests if manifest["kind"] in kinds and not manifest["metadata"]["name"].endswith("-dashboards")]
    return found


def workload(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return one(manifests, "Deployment", "StatefulSet")


def configuration(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return yaml.safe_load(one(manifests, "ConfigMap")["data"]["kvwatch.yaml"])


@pytest.mark.parametrize("name", VALUES)
def test_helm_lint_has_nothing_to_say(helm, name):
    assert helm("lint", values_of(name))["messages"] == []


def test_the_icon_is_an_image_that_no_other_host_serves(repository):
    kind, image = yaml.safe_load((repository / "deploy/helm/kvwatch/Chart.yaml").read_text())["icon"].split(",", 1)
    assert kind == "data:image/svg+xml"
    assert ET.fromstring(unquote(image)).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - our own


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_kubernetes_takes_every_manifest(rendered, version):
    _, _, manifests = rendered
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_operator_takes_every_custom_resource(helm, faults_of):
    custom = [manifest for name in VALUES for manifest in manifests_of(helm("render", values_of(name))) if manifest["kind"] in CUSTOM]
    assert {manifest["kind"] for manifest in custom} == CUSTOM
    assert faults_of(custom) == ""


def test_every_object_is_named_labelled_and_placed(rendered):
    _, values, manifests = rendered
    names = Counter((manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests)
    assert set(names.values()) == {1}
    for manifest in manifests:
        meta = manifest["metadata"]
        assert meta["namespace"] == "serving"
        assert len(meta["name"]) <= 63
        assert meta["labels"]["app.kubernetes.io/instance"] == "kvwatch"
        assert {key: meta["labels"].get(key) for key in values.get("commonLabels", {})}.keys() <= meta["labels"].keys()


def test_kvwatch_takes_the_configuration(rendered):
    name, values, manifests = rendered
    settings = Settings(**configuration(manifests))
    urls = [target.url for target in settings.targets]
    service = [one for one in manifests if one["metadata"]["labels"]["app.kubernetes.io/component"] == "discovery"]
    if name == "files":
        assert (urls[0], len(urls), settings.discovery.refresh, service) == ("http://10.0.0.7:8000/metrics", 3, 60.0, [])
        return
    [service] = service
    [port] = service["spec"]["ports"]
    scheme = values.get("discovery", {}).get("scheme", "http")
    assert urls == [f"dns+{scheme}://{service['metadata']['name']}:{port['port']}/metrics"]
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)


def test_the_pods_to_watch_are_chosen_by_the_labels_given_and_no_others(rendered):
    name, values, manifests = rendered
    wanted = values.get("discovery", {}).get("selector", {"app.kubernetes.io/name": "vllm"})
    services = [one for one in manifests if one["metadata"]["labels"]["app.kubernetes.io/component"] == "discovery"]
    assert [service["spec"]["selector"] for service in services] == ([] if name == "files" else [wanted])
    for policy in manifests:
        if policy["kind"] == "NetworkPolicy" and services:
            asked = policy["spec"]["egress"][0]
            assert asked["to"] == [{"podSelector": {"matchLabels": wanted}}]
            assert asked["ports"][0]["port"] == services[0]["spec"]["ports"][0]["port"]


def test_services_budget_policy_and_monitor_choose_the_pods(rendered):
    _, _, manifests = rendered
    pod = workload(manifests)["spec"]["template"]
    labels, [container] = pod["metadata"]["labels"], pod["spec"]["containers"]
    assert workload(manifests)["spec"]["selector"]["matchLabels"].items() <= labels.items()
    services = [one for one in manifests if one["kind"] == "Service"]
    for service in services:
        if service["metadata"]["labels"]["app.kubernetes.io/component"] != "discovery":
            assert service["spec"]["selector"].items() <= labels.items()
            assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["containerPort"] == 20058
    for kind, where in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector"), ("PodMonitor", "selector")):
        for manifest in manifests:
            if manifest["kind"] == kind:
                assert manifest["spec"][where]["matchLabels"].items() <= labels.items()
    for monitor in manifests:
        if monitor["kind"] == "ServiceMonitor":
            wanted = monitor["spec"]["selector"]["matchLabels"].items()
            [chosen] = [one for one in services if wanted <= one["metadata"]["labels"].items()]
            assert monitor["spec"]["endpoints"][0]["port"] == chosen["spec"]["ports"][0]["name"]
        if monitor["kind"] == "PodMonitor":
            assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == container["ports"][0]["name"]


def test_the_pod_is_locked_down_probed_and_never_asks_the_api_server(rendered):
    _, values, manifests = rendered
    spec = workload(manifests)["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert ("runAsUser" in spec["securityContext"]) == ("podSecurityContext" not in values)
    assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    scheme = "HTTPS" if values.get("tls") else "HTTP"
    assert container["livenessProbe"]["httpGet"] == {"path": "/-/healthy", "port": 20058, "scheme": scheme}
    assert container["readinessProbe"]["httpGet"] == {"path": "/-/ready", "port": 20058, "scheme": scheme}
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_one_is_a_deployment_and_several_know_which_shard_they_are(rendered):
    _, values, manifests = rendered
    shards, made = values.get("shards", 1), workload(manifests)
    environment = {entry["name"]: entry for entry in made["spec"]["template"]["spec"]["containers"][0].get("env", [])}
    assert made["spec"]["replicas"] == shards
    budgets = [one for one in manifests if one["kind"] == "PodDisruptionBudget"]
    if shards == 1:
        assert (made["kind"], made["spec"]["strategy"]) == ("Deployment", {"type": "Recreate"})
        assert "KVWATCH_SHARD" not in environment
        assert budgets == []
        return
    assert made["kind"] == "StatefulSet"
    headless = next(one for one in manifests if one["kind"] == "Service" and one["metadata"]["name"] == made["spec"]["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"
    assert environment["POD_INDEX"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
    written = environment["KVWATCH_SHARD"]["value"]
    assert [parse_shard(written.replace("$(POD_INDEX)", str(pod))) for pod in range(shards)] == [(pod, shards) for pod in range(shards)]
    assert list(environment).index("POD_INDEX") < list(environment).index("KVWATCH_SHARD"), "a variable is expanded from those before it"
    assert len(budgets) == (1 if values.get("podDisruptionBudget", {}).get("create", True) else 0)


def test_the_rules_are_those_of_the_rule_file_with_links_that_people_can_follow(helm, repository, require_tool, tmp_path):
    text = (repository / "rules" / "kvwatch.rules.yaml").read_text()
    plain = one(manifests_of(helm("render", {"prometheusOperator": {"rules": True}})), "PrometheusRule")
    assert plain["spec"] == yaml.safe_load(text)
    linked = one(manifests_of(helm("render", values_of("sharded"))), "PrometheusRule")
    assert linked["spec"] == yaml.safe_load(text.replace("http://{{ $labels.instance }}", "https://kvwatch.example.com"))
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(linked["spec"]))
    result = subprocess.run(
        [require_tool("promtool"), "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_dashboards_are_ours_and_fit_a_config_map(helm, repository):
    rendered = manifests_of(helm("render", {"dashboards": {"create": True}}))
    [dashboards] = [one for one in rendered if one["metadata"]["name"] == "kvwatch-dashboards"]
    for name, text in dashboards["data"].items():
        assert json.loads(text) == json.loads((repository / "deploy" / "grafana" / name).read_text())
    assert len(dashboards["data"]) == 2
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert len(json.dumps(dashboards)) < 256 * 1024, "kubectl apply keeps a copy in an annotation"


def test_a_package_holds_the_files_its_links_lead_to(helm, tmp_path, repository):
    with tarfile.open(helm("package", destination=tmp_path)["package"]) as package:
        members = {member.name: member for member in package.getmembers()}
        assert all(member.isfile() for member in members.values())
        rules = package.extractfile("kvwatch/files/kvwatch.rules.yaml").read()
    assert rules == (repository / "rules" / "kvwatch.rules.yaml").read_bytes()


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"shard": 3}, "shard"),
        ({"shards": 0}, "shards"),
        ({"shards": 101}, "shards"),
        ({"shards": "3"}, "shards"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"discovery": {"selector": {"app": 7}}}, "selector"),
        ({"discovery": {"port": "metrics"}}, "port"),
        ({"config": {"shard": "0/3"}}, "shard"),
        ({"config": {"web": {"listen_address": "0.0.0.0:9"}}}, "listen_address"),
        ({"config": {"targets": "http://a:8000/metrics"}}, "targets"),
        ({"prometheusOperator": {"monitor": True}}, "monitor"),
        ({"prometheusOperator": {"interval": "15"}}, "interval"),
        ({"prometheusOperator": {"externalUrl": "kvwatch.example.com"}}, "externalUrl"),
        ({"networkPolicy": {"namespace": "monitoring"}}, "namespace"),
    ],
)  # fmt: skip
def test_values_that_mean_nothing_are_refused_by_name(helm, values, where):
    assert where in helm("render", values)["error"]


def test_the_schema_knows_every_value_and_no_other(repository):
    chart = repository / "deploy" / "helm" / "kvwatch"
    values, schema = yaml.safe_load((chart / "values.yaml").read_text()), json.loads((chart / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, group in values.items():
        if schema["properties"][name].get("additionalProperties") is False:
            assert set(schema["properties"][name]["properties"]) == set(group), name


@pytest.mark.parametrize("name", ["kvwatch", "prod", "a-release-with-a-name-of-53-characters-which-is-the-most"])
def test_releases_of_any_name_have_names_kubernetes_takes(helm, name):
    for manifest in manifests_of(helm("render", {"shards": 2}, name=name)):
        kubernetes_validate.validate(manifest, KUBERNETES_VERSIONS[0], strict=True)
        assert len(manifest["metadata"]["name"]) <= 63
        assert not manifest["metadata"]["name"].endswith("-")


def test_the_chart_carries_the_version_of_the_package_and_its_image(helm, repository):
    chart = yaml.safe_load((repository / "deploy/helm/kvwatch/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (kvwatch.__version__, kvwatch.__version__)
    [container] = workload(manifests_of(helm("render")))["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"kvwatch:{kvwatch.__version__}"
    [container] = workload(manifests_of(helm("render", values_of("sharded"))))["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/kvwatch@sha256:{'a' * 64}"


def test_the_pod_and_its_limits_are_those_of_the_kustomization(helm, render, repository):
    ours = workload(manifests_of(helm("render")))["spec"]["template"]["spec"]
    theirs = workload(render(repository / "deploy" / "kubernetes" / "standalone"))["spec"]["template"]["spec"]
    assert ours["securityContext"] == theirs["securityContext"]
    for key in ("resources", "securityContext", "args", "ports"):
        assert ours["containers"][0][key] == theirs["containers"][0][key]


@pytest.mark.parametrize(("name", "said"), [
    ("defaults", ["app.kubernetes.io/name=vllm", "port-forward service/kvwatch 20058:20058", "No monitor was made"]),
    ("sharded", ["pod/a-name-that-is-longer-than-what-kubernetes-lets-a-la-2 20060:20058", "Each shard shows its own part"]),
    ("https", ["app=chat", "tier=model", "https://127.0.0.1:20058/"]),
    ("files", ["kvwatch watches what config names", "No monitor was made"]),
])  # fmt: skip
def test_the_notes_say_what_is_watched_and_where_the_page_is(helm, name, said):
    notes = helm("render", values_of(name))["files"]["kvwatch/templates/NOTES.txt"]
    assert [text for text in said if text not in notes] == []


def test_the_notes_say_it_where_nothing_is_watched(helm):
    notes = helm("render", {"discovery": {"create": False}})["files"]["kvwatch/templates/NOTES.txt"]
    assert notes.startswith("Nothing is watched")


def test_the_values_of_the_readme_are_values(helm, repository):
    readme = (repository / "deploy" / "helm" / "README.md").read_text()
    example = yaml.safe_load(readme.split("```yaml\n")[1].split("```")[0])
    assert {one["kind"] for one in manifests_of(helm("render", example))} >= {"PodMonitor", "PrometheusRule", "NetworkPolicy"}
    flags: dict[str, Any] = {}
    for path, value in re.findall(r"--set(?:-json)? '?([\w.]+)=([^\s']+)", readme):
        *groups, key = path.split(".")
        inner = flags
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[key] = yaml.safe_load(value)
    assert flags["discovery"] == {"selector": {"app": "chat"}}
    assert len(flags["prometheusOperator"]) == 3
    monitor = one(manifests_of(helm("render", flags)), "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
