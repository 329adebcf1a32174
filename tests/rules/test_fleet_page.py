"""What docs/fleet.md gives to copy is what Prometheus takes, and asks for series there are."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml


@pytest.fixture
def page(repository) -> str:
    return (repository / "docs" / "fleet.md").read_text()


def test_prometheus_takes_the_configuration_for_remote_write(page, require_tool, tmp_path):
    config = tmp_path / "prometheus.yml"
    config.write_text(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    result = subprocess.run([require_tool("promtool"), "check", "config", config], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_remote_write_keeps_every_recorded_series_and_no_other_of_kvwatch(page, repository):
    [relabelling] = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])["remote_write"][0]["write_relabel_configs"]
    rules = [rule for group in yaml.safe_load((repository / "rules/kvwatch.rules.yaml").read_text())["groups"] for rule in group["rules"]]
    recorded = [rule["record"] for rule in rules if "record" in rule]
    assert len(recorded) > 8
    assert [name for name in recorded if not re.fullmatch(relabelling["regex"], name)] == []
    assert not re.fullmatch(relabelling["regex"], "kvwatch_state")


def test_every_expression_is_one_and_has_a_value_for_a_fleet(page, repository, require_tool, tmp_path):
    """Two engines of 10 000 tokens each, with a demand of 1.1 and 0.3: 14 000 of 20 000 tokens, 0.7 of it, and 1.75 engines at 80 %."""
    expressions = [line for block in re.findall(r"```promql\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    by_engine = {"kv_demand_ratio": (1.1, 0.3), "kv_capacity_tokens": (10000, 10000), 'state{state="healthy"}': (1, 1)}
    series = [
        {"series": f'kvwatch_{name.rstrip("}")}{"," if "{" in name else "{"}model_name="m", target="{target}"}}', "values": f"{value}x4"}
        for name, values in by_engine.items()
        for target, value in zip("ab", values, strict=True)
    ]
    wanted = [("", 1.1), ("m", 0.7), ("m", 2)]
    samples = [
        [{"labels": "model:kvwatch_kv_demand_ratio:max{model_name='m'}" if not of else f'{{model_name="{of}"}}', "value": value}]
        for of, value in wanted
    ]
    test = {
        "rule_files": [str(repository / "rules" / "kvwatch.rules.yaml")],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": series,
                "promql_expr_test": [
                    {"expr": expression, "eval_time": "1m", "exp_samples": sample}
                    for expression, sample in zip(expressions, samples, strict=True)
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    result = subprocess.run(
        [require_tool("promtool"), "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
