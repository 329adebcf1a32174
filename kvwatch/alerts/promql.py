"""How the rule file says it: the condition that is waited on, and the numbers in a text. A pure matter of strings."""

from __future__ import annotations

from typing import Final

from kvwatch.alerts.times import EVIDENCE_SECONDS
from kvwatch.model import Cause

_LATELY: Final = f"[{EVIDENCE_SECONDS:.0f}s]"


def condition(alert: str) -> str:
    """Where the condition of kvwatch's *alert* holds, or did when Prometheus could last scrape it, while that is young enough."""
    return f'max without (alert) (last_over_time(kvwatch_alert_condition{{alert="{alert}"}}{_LATELY})) == 1'


def active(alert: str) -> str:
    """The same for an alert that kvwatch has timed."""
    return f'max without (alert, severity) (last_over_time(kvwatch_alert_active{{alert="{alert}"}}{_LATELY})) == 1'


def number(text: str, metric: str, shape: str = "", *, labels: str = "", lately: str = "last", otherwise: str = "") -> str:
    """A piece of a text's template: *text* with the engine's *metric* for its ``{}``, or *otherwise* where there is none.

    *labels* narrow the metric, *shape* is a function of Prometheus' templates. The number is the *last* or the *max* of lately, for a lost
    scrape must not take it out of the text.
    """
    before, after = text.split("{}")
    value = "{{ . | first | value" + (f" | {shape}" if shape else "") + " }}"
    other = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    joined = "\n{{-" if before.startswith((",", ";", ":", " ")) else "{{"
    return f"{joined}{_query(f'{lately}_over_time({metric}{{{labels}%s}}{_LATELY})')}{before}{value}{after}{other}{{{{ end }}}}"


def cause_among(*causes: Cause) -> str:
    """The same for a cause: which of *causes* it was most of the time lately."""
    matcher = f'cause=~"{"|".join(causes)}",'
    found = _query(f"topk(1, sum_over_time(kvwatch_cause{{{matcher}%s}}{_LATELY}) > 0)")
    return f'{{{{{found}{{{{ . | first | label "cause" }}}}{{{{ else }}}}unknown{{{{ end }}}}'


def _query(expression: str) -> str:
    quoted = expression.replace('"', '\\"')
    return f' with query (printf "{quoted}" $engine) }}}}'


RUNNING: Final = number("; running {}", "kvwatch_requests_running")
WAITING: Final = number(", waiting {}", "kvwatch_requests_waiting")
