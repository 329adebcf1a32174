"""Rendering of the kustomizations, as a user would render them."""

from __future__ import annotations

import subprocess
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
