"""The PrometheusRule is rules/kvwatch.rules.yaml in its wrapping, and nothing else."""

from __future__ import annotations

import importlib.util
import subprocess

import pytest
import yaml


@pytest.fixture(scope="module")
def script(repository):
    """`deploy/kubernetes/prometheus_rule.py`, which is no module of the package."""
    spec = importlib.util.spec_from_file_location("prometheus_rule", repository / "deploy/kubernetes/prometheus_rule.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)
    return module


def test_the_committed_manifest_is_what_the_script_writes(script):
    assert script.MANIFEST.read_text() == script.wrapped(script.RULES.read_text()), "run `make generated`"


def test_its_groups_are_those_of_the_rule_file(repository):
    manifest = yaml.safe_load((repository / "deploy/kubernetes/monitoring/prometheus-rule.yaml").read_text())
    rules = yaml.safe_load((repository / "rules/kvwatch.rules.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert manifest["spec"] == rules


def test_promtool_takes_what_kustomize_renders(render, repository, require_tool, tmp_path):
    """Kustomize reads and writes the YAML anew, expressions of several lines included."""
    [manifest] = [one for one in render(repository / "deploy/kubernetes/monitoring") if one["kind"] == "PrometheusRule"]
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(manifest["spec"]))
    result = subprocess.run([require_tool("promtool"), "check", "rules", rules], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
