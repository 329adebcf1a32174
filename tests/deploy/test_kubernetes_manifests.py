"""Every manifest that can be rendered is one that Kubernetes, the Prometheus operator and KEDA would take."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from kvwatch.config.values import parse_shard

Manifest = dict[str, Any]

KUBERNETES_VERSIONS = ("1.29", "1.33", "1.37")
FOLDERS = ("standalone", "sharded", "autoscaling/hpa", "example")  # the example holds monitoring and autoscaling/keda
CUSTOM = {"ScaledObject", "PodMonitor", "PrometheusRule"}


@pytest.fixture(scope="module", params=FOLDERS)
def manifests(request, render, repository) -> list[Manifest]:
    return render(repository / "deploy" / "kubernetes" / request.param)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_kubernetes_takes_every_manifest(manifests, version):
    own = [manifest for manifest in manifests if manifest["kind"] not in CUSTOM]
    for manifest in own:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
@pytest.mark.parametrize("components", [("sidecar",), ("sidecar", "guaranteed-qos"), ("sidecar", "guaranteed-qos", "classic-container")])
def test_kubernetes_takes_what_the_components_make_of_a_workload(render, kustomization, components, kind, version):
    pod = {"containers": [{"name": "vllm", "image": "vllm:1"}]}
    spec = {"selector": {"matchLabels": {"app": "chat"}}, "template": {"metadata": {"labels": {"app": "chat"}}, "spec": pod}}
    if kind == "StatefulSet":
        spec["serviceName"] = "chat"
    workload = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "chat"}, "spec": spec}
    for manifest in render(kustomization([workload], *components)):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_validator_sees_a_field_that_is_none(render, repository):
    deployment = next(one for one in render(repository / "deploy/kubernetes/standalone") if one["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES_VERSIONS[0], strict=True)


def test_the_operators_take_every_custom_resource(render, repository, faults_of):
    rendered = [manifest for folder in FOLDERS for manifest in render(repository / "deploy" / "kubernetes" / folder)]
    custom = [manifest for manifest in rendered if manifest["kind"] in CUSTOM]
    assert {manifest["kind"] for manifest in custom} == CUSTOM
    assert faults_of(custom) == ""


def test_the_shape_check_sees_what_a_custom_resource_does_not_have(faults_of):
    spec = {"selector": {}, "podMetricsEndpoints": [{"port": "kvwatch", "intervall": "15s"}]}
    monitor = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": {"name": "kvwatch"}, "spec": spec}
    assert faults_of([monitor]) == "PodMonitor.spec.podMetricsEndpoints[0].intervall is no field of it\n"


def by_kind(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == name)


def test_the_standalone_kvwatch_follows_the_service_that_is_rendered_with_it(render, repository):
    manifests = render(repository / "deploy/kubernetes/standalone")
    config = next(one for one in manifests if one["kind"] == "ConfigMap")
    service = by_kind(manifests, "Service", "vllm-pods")
    assert "url: dns+http://vllm-pods:8000/metrics" in config["data"]["kvwatch.yaml"]
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    [port] = service["spec"]["ports"]
    assert port["targetPort"] == 8000
    pod = by_kind(manifests, "Deployment", "kvwatch")["spec"]["template"]
    assert pod["spec"]["volumes"] == [{"name": "config", "configMap": {"name": config["metadata"]["name"]}}]
    assert (pod["spec"]["enableServiceLinks"], pod["spec"]["automountServiceAccountToken"]) == (False, False)
    assert pod["spec"]["containers"][0]["readinessProbe"]["httpGet"] == {"path": "/-/ready", "port": 20058}


def test_services_and_policies_of_the_standalone_kvwatch_select_its_pod_by_number(render, repository):
    manifests = render(repository / "deploy/kubernetes/standalone")
    labels = by_kind(manifests, "Deployment", "kvwatch")["spec"]["template"]["metadata"]["labels"]
    service, policy = by_kind(manifests, "Service", "kvwatch"), by_kind(manifests, "NetworkPolicy", "kvwatch")
    assert service["spec"]["selector"].items() <= labels.items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["ports"][0]["targetPort"] == 20058
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": 20058, "protocol": "TCP"}]


def test_the_pod_monitor_finds_the_sidecar_of_the_example_and_the_standalone_pod(render, repository):
    example = render(repository / "deploy/kubernetes/example")
    standalone = render(repository / "deploy/kubernetes/standalone")
    monitor = by_kind(example, "PodMonitor", "kvwatch")["spec"]
    [endpoint] = monitor["podMetricsEndpoints"]
    sidecar_pod = by_kind(example, "Deployment", "chat")["spec"]["template"]
    alone = by_kind(standalone, "Deployment", "kvwatch")["spec"]["template"]
    for pod, containers in ((sidecar_pod, "initContainers"), (alone, "containers")):
        assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        [container] = [one for one in pod["spec"][containers] if one["name"] == "kvwatch"]
        assert endpoint["port"] in {port["name"] for port in container["ports"]}
    assert endpoint["relabelings"] == [{"action": "replace", "targetLabel": "job", "replacement": "kvwatch"}]


def test_the_autoscalers_scale_the_deployment_of_the_example_alike(render, repository):
    example = render(repository / "deploy/kubernetes/example")
    [hpa] = render(repository / "deploy/kubernetes/autoscaling/hpa")
    keda = by_kind(example, "ScaledObject", "chat")["spec"]
    deployment = by_kind(example, "Deployment", "chat")
    assert "replicas" not in deployment["spec"], "the autoscaler owns it"
    assert keda["scaleTargetRef"]["name"] == hpa["spec"]["scaleTargetRef"]["name"] == "chat"
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["spec"]["behavior"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (hpa["spec"]["minReplicas"], hpa["spec"]["maxReplicas"])
    assert keda["triggers"][0]["metadata"]["threshold"] == "0.8"
    assert hpa["spec"]["metrics"][0]["external"]["target"]["averageValue"] == "800m"


def test_no_service_shadows_a_variable_of_vllm_or_kvwatch_where_service_links_are_on(render, repository):
    """A Service named vllm becomes VLLM_PORT=tcp://… in every pod of its namespace."""
    names = {one["metadata"]["name"] for one in render(repository / "deploy/kubernetes/example") if one["kind"] == "Service"}
    assert names == {"chat"}


def test_the_shards_differ_from_the_standalone_kvwatch_in_being_several_and_knowing_which(render, repository):
    alone, several = (render(repository / "deploy/kubernetes" / folder) for folder in ("standalone", "sharded"))
    pod = by_kind(alone, "Deployment", "kvwatch")["spec"]["template"]
    stateful = by_kind(several, "StatefulSet", "kvwatch")["spec"]
    environment = {entry["name"]: entry for entry in stateful["template"]["spec"]["containers"][0].pop("env")}
    assert stateful["template"] == pod
    assert stateful["serviceName"] == by_kind(several, "Service", "kvwatch-shards")["metadata"]["name"]
    assert environment["POD_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    assert parse_shard(environment["KVWATCH_SHARD"]["value"].replace("$(POD_INDEX)", "2")) == (2, stateful["replicas"])
    budget = by_kind(several, "PodDisruptionBudget", "kvwatch")["spec"]
    assert budget["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert {manifest["kind"] for manifest in several} == {manifest["kind"] for manifest in alone} - {"Deployment"} | {
        "StatefulSet",
        "PodDisruptionBudget",
    }
