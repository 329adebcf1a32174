"""The compose file is one that Compose takes, and everything in it fits together."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose


@pytest.fixture
def folder(repository) -> Path:
    return repository / "deploy" / "compose"


@pytest.fixture
def compose(folder) -> dict[str, Any]:
    return yaml.safe_load((folder / "compose.yaml").read_text())


def test_the_compose_file_has_the_shape_of_the_specification(folder):
    parsed = PyCompose.from_yaml((folder / "compose.yaml").read_text())
    assert sorted(parsed.service_names()) == ["alertmanager", "engine", "grafana", "kvwatch", "prometheus", "simulator"]


def test_the_shape_check_sees_a_key_that_is_none():
    with pytest.raises(ValueError, match="portz"):
        PyCompose.from_yaml("services: {kvwatch: {image: kvwatch, portz: []}}")


def test_every_file_it_mounts_is_there_and_nothing_is_mounted_writable(folder, compose):
    mounts = [mount.split(":") for service in compose["services"].values() for mount in service.get("volumes", [])]
    files = [mount for mount in mounts if mount[0].startswith(".")]
    assert len(files) == 7
    for source, _, mode in files:
        assert (folder / source).is_file(), source
        assert mode == "ro"
    assert {mount[0] for mount in mounts if not mount[0].startswith(".")} == set(compose["volumes"])


def test_nothing_without_a_password_is_published_beyond_loopback(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 5
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_kvwatch_watches_whichever_vllm_the_profile_starts(folder, compose):
    services = compose["services"]
    assert services["kvwatch"]["environment"] == {"KVWATCH_TARGETS": "http://vllm:8000/metrics"}
    for name, profile in (("simulator", "simulator"), ("engine", "gpu")):
        assert services[name]["profiles"] == [profile]
        assert services[name]["networks"]["default"]["aliases"] == ["vllm"]
    assert "COMPOSE_PROFILES=simulator" in (folder / ".env").read_text().splitlines()


def test_prometheus_takes_its_configuration_and_the_rules(folder, repository, require_tool, tmp_path):
    rules = tmp_path / "kvwatch.rules.yaml"
    shutil.copy(repository / "rules" / "kvwatch.rules.yaml", rules)
    text = (folder / "prometheus.yml").read_text().replace("/etc/prometheus/rules", str(tmp_path))
    (tmp_path / "prometheus.yml").write_text(text)
    result = subprocess.run(
        [require_tool("promtool"), "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "SUCCESS: 1 rule files found" in result.stdout


def test_grafana_is_provisioned_with_the_data_source_and_the_dashboards(folder, compose):
    [source] = yaml.safe_load((folder / "grafana" / "datasources.yaml").read_text())["datasources"]
    [provider] = yaml.safe_load((folder / "grafana" / "dashboards.yaml").read_text())["providers"]
    assert source["url"] == "http://prometheus:9090"
    mounted = {mount.split(":")[1] for mount in compose["services"]["grafana"]["volumes"]}
    assert {f"{provider['options']['path']}/kvwatch-{name}.json" for name in ("fleet", "engine")} <= mounted
    assert compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted


def test_the_readme_starts_it_from_the_root_with_the_profile_of_its_env_file(repository, folder):
    """Compose reads .env beside the first file it is given."""
    [named] = re.findall(r"docker compose -f (\S+) up --build", (repository / "README.md").read_text())
    assert repository / named == folder / "compose.yaml"
    assert (folder / ".env").is_file()
