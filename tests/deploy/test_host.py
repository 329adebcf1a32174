"""The systemd unit and the configuration beside it."""

from __future__ import annotations

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


@pytest.mark.parametrize("component", ["components/sidecar", "standalone"])
def test_the_configurations_in_kubernetes_are_ones_that_kvwatch_takes(repository, component):
    settings = Settings(**yaml.safe_load((repository / "deploy/kubernetes" / component / "kvwatch.yaml").read_text()))
    assert len(settings.targets) == 1
    assert settings.web.host_port[1] == 20058
