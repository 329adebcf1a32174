"""What deployments call settings, flags, ports and paths is what kvwatch calls them."""

from __future__ import annotations

import argparse
import re

import pytest
import yaml

from kvwatch.config.flags import add_flags
from kvwatch.config.settings import Settings
from kvwatch.config.sources import load
from kvwatch.config.web import WebSettings
from kvwatch.simulator.__main__ import build_parser

PORT = WebSettings().host_port[1]
NO_SETTINGS = {"KVWATCH_PORT", "KVWATCH_SECTION__SETTING"}  # a variable of Kubernetes' own, and the README's pattern


def texts(repository):
    files = [repository / name for name in ("Dockerfile", "README.md", "kvwatch/daemon/healthcheck.py")]
    files += sorted((repository / "docs").glob("*.md"))
    files += [path for path in sorted((repository / "deploy").rglob("*")) if path.suffix in {".yaml", ".yml", ".md", ".conf", ".service"}]
    return {path.relative_to(repository).as_posix(): path.read_text() for path in files}


def test_every_variable_that_is_named_is_a_setting(repository):
    named = {name for text in texts(repository).values() for name in re.findall(r"\bKVWATCH_[A-Z_]+", text)} - NO_SETTINGS
    assert {"KVWATCH_TARGETS", "KVWATCH_WEB__LISTEN_ADDRESS"} <= named
    for name in named:
        section, _, setting = name.removeprefix("KVWATCH_").lower().partition("__")
        assert section in Settings.model_fields, name
        assert not setting or setting in Settings.model_fields[section].annotation.model_fields, name


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("Dockerfile", r"EXPOSE (\d+)"),
        ("deploy/kubernetes/components/sidecar/sidecar.yaml", r"(?:containerPort|port): (\d+)"),
        ("deploy/kubernetes/standalone/deployment.yaml", r"(?:containerPort|port): (\d+)"),
        ("deploy/kubernetes/standalone/service.yaml", r"(?:targetPort|port): (\d+)"),
        ("deploy/compose/prometheus.yml", r"kvwatch:(\d+)"),
        ("deploy/host/nginx.conf", r"127\.0\.0\.1:(\d+)"),
        ("deploy/host/kvwatch.yaml", r"listen_address: 127\.0\.0\.1:(\d+)"),
        ("deploy/host/README.md", r"127\.0\.0\.1:(\d+)/-/"),
    ],
)
def test_every_port_is_the_one_kvwatch_listens_on(repository, name, pattern):
    assert set(re.findall(pattern, texts(repository)[name])) == {str(PORT)}


@pytest.mark.parametrize("name", ["sidecar", "standalone"])
def test_the_arguments_of_a_container_are_ones_that_kvwatch_takes(repository, name):
    kubernetes = repository / "deploy" / "kubernetes"
    manifest, container = {
        "sidecar": (kubernetes / "components/sidecar/sidecar.yaml", "initContainers"),
        "standalone": (kubernetes / "standalone/deployment.yaml", "containers"),
    }[name]
    [kvwatch] = yaml.safe_load(manifest.read_text())["spec"]["template"]["spec"][container]
    command, *arguments = kvwatch["args"]
    parser = argparse.ArgumentParser()
    flags = add_flags(parser)
    parsed = parser.parse_args(arguments)
    [mount] = kvwatch["volumeMounts"]
    assert (command, str(parsed.config_file.parent)) == ("run", mount["mountPath"])
    parsed.config_file = manifest.with_name(parsed.config_file.name)
    assert load(parsed, flags).targets


def test_the_simulator_in_the_compose_file_takes_its_flags_and_serves_where_kvwatch_looks(repository):
    services = yaml.safe_load((repository / "deploy/compose/compose.yaml").read_text())["services"]
    parsed = build_parser().parse_args(services["simulator"]["command"])
    assert (parsed.host, parsed.port) == ("0.0.0.0", 8000)  # noqa: S104 - read, not bound
    assert services["kvwatch"]["environment"]["KVWATCH_TARGETS"] == f"http://vllm:{parsed.port}/metrics"
