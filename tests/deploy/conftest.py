"""Rendering of the kustomizations, as a user would render them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Manifest = dict[str, Any]


@pytest.fixture(scope="session")
def render(require_tool) -> Callable[[Path], list[Manifest]]:
    """`kubectl kustomize` of a folder, as a list of manifests. What kubectl complains about fails the test."""
    kubectl = require_tool("kubectl")

    def rendered(folder: Path) -> list[Manifest]:
        result = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
        return list(yaml.safe_load_all(result.stdout))

    return rendered


@pytest.fixture
def kustomization(tmp_path, repository) -> Callable[..., Path]:
    """A user's kustomization beside a copy of ours: *workloads* and the names of the components put over them."""

    def made(workloads: list[Manifest], *components: str, **more: Any) -> Path:
        folder = tmp_path / "app"
        folder.mkdir()
        ours = tmp_path / "kvwatch"
        ours.symlink_to(repository / "deploy" / "kubernetes")
        (folder / "workloads.yaml").write_text(yaml.safe_dump_all(workloads))
        content = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": ["workloads.yaml"],
            "components": [f"../kvwatch/components/{name}" for name in components],
            **more,
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
        return folder

    return made


def _script_with(repository: Path, tool: str, fetched_by: str, script: str) -> Callable[[Any], subprocess.CompletedProcess[str]]:
    """Runs a script of this folder with the packages of ``.cache/tools/TOOL``, its input as JSON; without them the test is skipped."""
    packages = repository / ".cache" / "tools" / tool
    if not packages.is_dir():
        reason = f"{tool} is not in .cache/tools: tests/tools/{fetched_by} puts it there"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    environment = {**os.environ, "PYTHONPATH": str(packages)}

    def run(given: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, Path(__file__).with_name(script)]
        return subprocess.run(command, input=json.dumps(given), env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def faults_of(repository) -> Callable[[list[Manifest]], str]:
    """What `crd_shapes.py` prints of custom resources: a line for each that its operator would not take."""
    run = _script_with(repository, "crd-models", "fetch_crd_models.sh", "crd_shapes.py")

    def faults(custom: list[Manifest]) -> str:
        result = run(custom)
        assert result.stderr == ""
        return result.stdout

    return faults


@pytest.fixture(scope="session")
def helm(repository) -> Callable[..., Any]:
    """Helm: ``helm("lint"|"render"|"package", values, …)`` on our chart, see `helm_chart.py`."""
    run = _script_with(repository, "helm", "fetch_helm.sh", "helm_chart.py")

    def asked(do: str, values: Manifest | None = None, *, name: str = "kvwatch", destination: Path | None = None) -> Any:
        chart = repository / "deploy" / "helm" / "kvwatch"
        request = {"do": do, "chart": str(chart), "values": values or {}, "name": name, "destination": str(destination)}
        result = run(request)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return asked
