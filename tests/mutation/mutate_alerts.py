"""Mutants of the alert engine and the notifier: ``python tests/mutation/mutate_alerts.py [COUNT] [SEED]`` (150 and 1 when not given)."""

from __future__ import annotations

import sys

from mutants import Target, run

ALERTS = Target(
    packages=("kvwatch/alerts", "kvwatch/exporter/alertmanager"),
    tests=(
        "tests/alerts/test_alert_state.py",
        "tests/exporter/test_alertmanager_push.py",
        "tests/rules/test_rules.py::test_the_rule_file_is_current",
        "tests/alerts/test_alert_conditions.py",
        "tests/alerts/test_isolation.py",
        "tests/exporter/test_alertmanager_client.py",
        "tests/test_docs.py::test_the_table_of_alerts_is_what_the_alerts_say_of_themselves",
    ),
    bar=0.95,
    equivalent={"@dataclass(frozen=True, slots=True)": "nobody changes one or gives it a new attribute"},
)

if __name__ == "__main__":
    sys.exit(run(ALERTS, *(map(int, sys.argv[1:]) if sys.argv[1:] else (150,))))
