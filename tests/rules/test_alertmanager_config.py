"""The example configuration, as Alertmanager's own tool reads it. That the inhibitions work is tested on a running one, in tests/e2e."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CONFIG: Final = ROOT / "deploy" / "alertmanager" / "alertmanager.yaml"
RULES: Final = yaml.safe_load((ROOT / "rules" / "kvwatch.rules.yaml").read_text())
ALERTS: Final = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
PAGES: Final = {"KVWatchPreemptionStorm", "KVWatchEngineStalled"}


def amtool(tool: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(tool), *arguments], capture_output=True, text=True, check=False, timeout=30)


def test_amtool_accepts_the_configuration(require_tool: Callable[[str], Path]) -> None:
    result = amtool(require_tool("amtool"), "check-config", str(CONFIG))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_only_a_storm_and_a_stall_reach_the_pager(rule: dict[str, Any], require_tool: Callable[[str], Path]) -> None:
    labels = [f"{name}={value}" for name, value in {"alertname": rule["alert"], **rule["labels"]}.items()]
    expected = "pager" if rule["alert"] in PAGES else "chat"
    result = amtool(
        require_tool("amtool"),
        "config",
        "routes",
        "test",
        f"--config.file={CONFIG}",
        f"--verify.receivers={expected}",
        *labels,
        "target=vllm",
    )
    assert result.returncode == 0, result.stdout + result.stderr
