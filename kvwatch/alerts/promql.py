"""How the rule file says it: expressions over what was last seen, and the numbers in a text. A pure matter of strings."""

from __future__ import annotations

from textwrap import indent
from typing import Final

from kvwatch.alerts.times import EVIDENCE_SECONDS
from kvwatch.model import Cause

UNKNOWN: Final = 'max without (state) (kvwatch_state{state="unknown"}) == 1'
"""The engines that could not be seen."""
_LATELY: Final = f"[{EVIDENCE_SECONDS:.0f}s]"


def last_seen(holds: str, series: str, unseen: str = UNKNOWN) -> str:
    """*holds* as it was last seen, while that is young enough.

    The answer was no where *series* is there and *holds* is not, and there was no answer where *unseen* is: polls that kvwatch lost and
    scrapes that Prometheus lost leave no sample.
    """
    return last_of(f"  (\n{indent(holds, ' ' * 4)}\n  or\n    0 * {series}\n  )\nunless\n  {unseen}", EVIDENCE_SECONDS)


def last_of(samples: str, seconds: float) -> str:
    """Whether the last of *samples*, of as many *seconds*, is above 0."""
    return f"last_over_time((\n{indent(samples, ' ' * 2)}\n)[{seconds:.0f}s:5s]) > 0"


def number(text: str, metric: str, shape: str = "", *, labels: str = "", lately: str = "last", otherwise: str = "") -> str:
    """A piece of a text's template: *text* with the engine's *metric* for its ``{}``, or *otherwise* where there is none.

    *labels* narrow the metric, *shape* is a function of Prometheus' templates. The number is the *last* or the *max* of lately, for a lost
    scrape must not take it out of the text.
    """
    before, after = text.split("{}")
    value = "{{ . | first | value" + (f" | {shape}" if shape else "") + " }}"
    other = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    joined = "\n{{-" if before.startswith((",", ";", " ")) else "{{"
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
