"""``BaselineRegressed``: an engine is worse than it was when its baseline was measured, under a load like that one."""

from __future__ import annotations

from typing import Final

from kvwatch.alerts.definition import EngineAlert, Facts, PrometheusRule
from kvwatch.alerts.promql import cause_among, number
from kvwatch.alerts.wording import load_of, sentence
from kvwatch.model import Cause, Severity

_LINES: Final = (
    ("throughput", "tokens/s {}"),
    ("preemption", "preemption ratio {}"),
    ("ttft", "time to first token {}"),
    ("itl", "inter-token latency {}"),
    ("p99", "end to end {}"),
)


def condition(facts: Facts) -> bool | None:
    """Any of the five lines worse by more than its tolerance; loads that differ say neither yes nor no."""
    if facts.baseline is None or facts.baseline.refusals:
        return None
    return any(line.worse for line in facts.baseline.lines)


def describe(facts: Facts) -> str:
    """Every line that got worse."""
    lines = () if facts.baseline is None else facts.baseline.lines
    worse = "; ".join(line.words for line in lines if line.worse)
    return sentence(
        facts.verdict,
        f"{worse}{load_of(facts.signals)}",
        "see what changed since the baseline was measured: vLLM's version and flags, the model, the driver, the host",
    )


ALERT: Final = EngineAlert(
    name="BaselineRegressed",
    severity=Severity.WARNING,
    for_seconds=1800.0,  # with the ten minutes of a comparison at least four in a row: a single one is noise too often
    summary="A vLLM engine is worse than its baseline under a load like it.",
    fires_when="one of the five lines is worse than `baseline` under a load like it, for half an hour",
    condition=condition,
    describe=describe,
    rule=PrometheusRule(
        comment="With the ten minutes of a comparison at least four in a row: a single one is noise too often. The baseline stands in\n"
        "kvwatch's configuration.",
        description=(
            "against its baseline"
            + "".join(
                number(f" {words},", "kvwatch_baseline_change_ratio", 'printf "%+.2f"', labels=f'line="{name}",') for name, words in _LINES
            )
            + f"\nwhile its cause is {cause_among(*Cause)}."
        ),
        first="see what changed since the baseline was measured: vLLM's version and flags, the model, the driver, the host.",
    ),
)
