"""The systemd unit and the configuration beside it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kvwatch.config.settings import Settings


@pytest.fixture
def unit(repository, tmp_path) -> Path:
    """The unit as installed, with a program that exists on this machine in place of kvwatch."""
    text = (repository / "deploy/host/kvwatch.service").read_text()
    installed = tmp_path / "kvwatch.service"
    installed.write_text(text.replace("/opt/kvwatch/bin/kvwatch", shutil.which("true") or ""))
    return installed


def test_systemd_has_nothing_to_say_about_the_unit(unit, require_tool):
    result = subprocess.run([require_tool("systemd-analyze"), "verify", unit], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_the_unit_is_as_closed_as_the_notes_say(unit, repository, require_tool):
    analyze = [require_tool("systemd-analyze"), "security", "--offline=true", "--threshold=15"]
    result = subprocess.run([*analyze, unit], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    level = result.stdout.strip().rsplit("kvwatch.service: ", 1)[1].split()[0]
    assert f"rates it {level} " in " ".join((repository / "deploy/host/README.md").read_text().split())


def test_its_configuration_is_one_that_kvwatch_takes(repository):
    settings = Settings(**yaml.safe_load((repository / "deploy/host/kvwatch.yaml").read_text()))
    assert [(target.name, target.max_num_seqs) for target in settings.targets] == [
        ("gpu-1", None)
    ]  # a guess in a sample would flip verdicts
    assert settings.web.host_port == ("127.0.0.1", 20058)
    assert settings.alertmanager.urls == ["http://127.0.0.1:9093"]
    assert settings.alertmanager.labels == {"instance": "gpu-1.example.com"}


def test_prometheus_takes_the_configuration_in_the_notes_and_scrapes_kvwatch_where_it_listens(repository, tmp_path, require_tool):
    [shown] = re.findall(r"```yaml\n(rule_files:.*?)```", (repository / "deploy/host/README.md").read_text(), re.DOTALL)
    shutil.copy(repository / "rules/kvwatch.rules.yaml", tmp_path)
    config = tmp_path / "prometheus.yml"
    config.write_text(shown.replace("/etc/prometheus/rules", str(tmp_path)))
    result = subprocess.run([require_tool("promtool"), "check", "config", config], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "SUCCESS: 1 rule files found" in result.stdout
    jobs = {one["job_name"]: one["static_configs"][0]["targets"] for one in yaml.safe_load(shown)["scrape_configs"]}
    settings = Settings(**yaml.safe_load((repository / "deploy/host/kvwatch.yaml").read_text()))
    assert jobs["kvwatch"] == [settings.web.listen_address]


@pytest.mark.parametrize("component", ["components/sidecar", "standalone"])
def test_the_configurations_in_kubernetes_are_ones_that_kvwatch_takes(repository, component):
    settings = Settings(**yaml.safe_load((repository / "deploy/kubernetes" / component / "kvwatch.yaml").read_text()))
    assert len(settings.targets) == 1
    assert settings.web.host_port[1] == 20058
