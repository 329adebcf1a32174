"""The sidecar lands in whatever runs vLLM, complete, and changes nothing else of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

Manifest = dict[str, Any]

VLLM = {"name": "vllm", "image": "vllm:1", "ports": [{"containerPort": 8000}], "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}  # noqa: S108 - what vLLM mounts
FETCH = {"name": "fetch-model", "image": "fetch:1"}


def workload(kind: str, **metadata: Any) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "chat", **metadata},
        "spec": {
            "selector": {"matchLabels": {"app": "chat"}},
            "template": {
                "metadata": {"labels": {"app": "chat"}},
                "spec": {
                    "initContainers": [copy.deepcopy(FETCH)],
                    "containers": [copy.deepcopy(VLLM)],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                },
            },
        },
    }


def only(manifests: list[Manifest], kind: str) -> Manifest:
    [found] = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def named(items: list[Manifest], name: str) -> Manifest:
    [found] = [item for item in items if item["name"] == name]
    return found


@pytest.fixture(params=["Deployment", "StatefulSet"])
def kind(request) -> str:
    return request.param


def test_the_native_sidecar_lands_beside_vllm_and_leaves_it_as_it_was(render, kustomization, kind):
    manifests = render(kustomization([workload(kind)], "sidecar"))
    template = only(manifests, kind)["spec"]["template"]
    pod = template["spec"]
    assert pod["containers"] == [VLLM]
    assert [container["name"] for container in pod["initContainers"]] == ["kvwatch", "fetch-model"], "before the download of a model"
    assert named(pod["initContainers"], "fetch-model") == FETCH
    assert template["metadata"]["labels"] == {"app": "chat", "kvwatch/monitored": "true"}
    assert only(manifests, kind)["spec"]["selector"] == {"matchLabels": {"app": "chat"}}, "selectors are immutable"
    assert pod["enableServiceLinks"] is False
    assert "automountServiceAccountToken" not in pod, "vLLM may need it"


def test_the_sidecar_is_a_sidecar_and_cannot_hold_vllm_back(render, kustomization, kind):
    sidecar = named(only(render(kustomization([workload(kind)], "sidecar")), kind)["spec"]["template"]["spec"]["initContainers"], "kvwatch")
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["livenessProbe"]["httpGet"] == {"path": "/-/healthy", "port": 20058}
    assert {"readinessProbe", "startupProbe", "env", "envFrom"}.isdisjoint(sidecar)
    assert sidecar["ports"] == [{"name": "kvwatch", "containerPort": 20058, "protocol": "TCP"}]
    assert sidecar["args"] == ["run", "--config.file=/etc/kvwatch/kvwatch.yaml"]
    assert sidecar["resources"] == {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}
    assert sidecar["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_its_configuration_is_mounted_from_the_config_map_that_is_rendered_with_it(render, kustomization, kind):
    manifests = render(kustomization([workload(kind)], "sidecar"))
    pod = only(manifests, kind)["spec"]["template"]["spec"]
    [mount] = named(pod["initContainers"], "kvwatch")["volumeMounts"]
    assert mount == {"name": "kvwatch", "mountPath": "/etc/kvwatch", "readOnly": True}
    assert named(pod["volumes"], "kvwatch") == {"name": "kvwatch", "configMap": {"name": only(manifests, "ConfigMap")["metadata"]["name"]}}
    assert named(pod["volumes"], "shm") == {"name": "shm", "emptyDir": {"medium": "Memory"}}
    assert list(only(manifests, "ConfigMap")["data"]) == ["kvwatch.yaml"]


def test_a_changed_setting_does_not_restart_vllm(render, kustomization):
    """The name of the ConfigMap is part of the pod template: a hash in it would roll every GPU pod."""
    assert only(render(kustomization([workload("Deployment")], "sidecar")), "ConfigMap")["metadata"]["name"] == "kvwatch"


def test_the_image_is_named_in_one_place(render, kustomization, kind):
    images = [{"name": "kvwatch", "newName": "registry.example/kvwatch", "digest": "sha256:" + 64 * "0"}]
    manifests = render(kustomization([workload(kind)], "sidecar", images=images))
    sidecar = named(only(manifests, kind)["spec"]["template"]["spec"]["initContainers"], "kvwatch")
    assert sidecar["image"] == "registry.example/kvwatch@sha256:" + 64 * "0"


def test_a_workload_can_be_left_alone(render, kustomization, kind):
    router = workload(kind, labels={"kvwatch/inject": "false"})
    assert only(render(kustomization([router], "sidecar", "guaranteed-qos", "classic-container")), kind) == router


def test_the_classic_container_is_the_sidecar_placed_last(render, kustomization, kind, tmp_path):
    native = named(
        only(render(kustomization([workload(kind)], "sidecar")), kind)["spec"]["template"]["spec"]["initContainers"],
        "kvwatch",
    )
    (tmp_path / "app").rename(tmp_path / "native")
    (tmp_path / "kvwatch").unlink()
    pod = only(render(kustomization([workload(kind)], "sidecar", "classic-container")), kind)["spec"]["template"]["spec"]
    assert pod["initContainers"] == [FETCH]
    assert [container["name"] for container in pod["containers"]] == ["vllm", "kvwatch"], "kubectl logs means vLLM"
    assert named(pod["containers"], "kvwatch") == {key: value for key, value in native.items() if key != "restartPolicy"}


@pytest.mark.parametrize(
    ("components", "where"),
    [
        pytest.param(("sidecar", "guaranteed-qos"), "initContainers", id="native"),
        pytest.param(("sidecar", "guaranteed-qos", "classic-container"), "containers", id="classic"),
    ],
)
def test_a_guaranteed_pod_stays_guaranteed(render, kustomization, kind, components, where):
    pod = only(render(kustomization([workload(kind)], *components)), kind)["spec"]["template"]["spec"]
    resources = named(pod[where], "kvwatch")["resources"]
    assert resources == {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "100m", "memory": "128Mi"}}


def test_a_user_s_own_configuration_takes_the_place_of_ours_under_the_same_name(render, kustomization, kind):
    own = "targets:\n  - url: http://127.0.0.1:9000/metrics\n"
    patch = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kvwatch"}, "data": {"kvwatch.yaml": own}}
    manifests = render(kustomization([workload(kind)], "sidecar", patches=[{"patch": yaml.safe_dump(patch)}]))
    config = only(manifests, "ConfigMap")
    assert config["data"] == {"kvwatch.yaml": own}
    mounted = named(only(manifests, kind)["spec"]["template"]["spec"]["volumes"], "kvwatch")
    assert mounted["configMap"]["name"] == config["metadata"]["name"] == "kvwatch"
