"""Mutants of the alert engine and the notifier: ``tests/mutation/mutate_alerts.py [COUNT] [SEED] [TEXT ...]``, 150 and 1 when not given."""

from __future__ import annotations

import sys

from mutants import Target, run

_BY_NAME = "every alert gives it by its name"

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
    equivalent={
        "self._not_before = now + min(2.0 ** min(self._failures - 1, 10), _LONGEST_BACKOFF, self._resend)": "32 s and more are 30",
        "labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), kw_only=True)": _BY_NAME,
        "hold_seconds: float = field(default=HOLD_SECONDS, kw_only=True)": _BY_NAME,
        "seconds_before: Callable[[Facts], float] = field(default=lambda _facts: 0.0, kw_only=True)": _BY_NAME,
    },
)

if __name__ == "__main__":
    sys.exit(run(ALERTS, sys.argv[1:], 150))
