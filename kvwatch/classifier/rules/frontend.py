"""``compute_bound``/``frontend``: the host in front of the engine is the limit."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Candidate, Number, Rule
from kvwatch.classifier.rules.numbers import QUEUE
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import number, percent

_WHOLE_CORE: Final = 0.9
"""Cores of the API server's one process, whose event loop can use one. Lower: a busy one that still keeps up is called the limit."""
_IDLE_GPU: Final = 0.8
"""Share of the time (0..1) the GPU is busy, below which something before it must hold requests up. Higher: pauses between steps count."""


def judge(signals: Signals, _policy: Policy) -> Candidate | None:
    """The API server's process uses a whole core while there is work, or the GPU idles while requests wait."""
    running = signals.fast.running
    busy = running is not None and running.mean > 0
    if busy and signals.process_cpu_ratio is not None and signals.process_cpu_ratio >= _WHOLE_CORE:
        evidence = f"the API server process uses {signals.process_cpu_ratio:.2f} cores: it can hand out no more than one"
        return Candidate(State.COMPUTE_BOUND, Cause.FRONTEND, (evidence,))
    if signals.gpu_utilization is not None and signals.gpu_utilization < _IDLE_GPU and is_sustained(signals):
        waiting = number(signals.recent.queue.mean if signals.recent.queue else 0)
        evidence = f"the GPU is {percent(signals.gpu_utilization)} busy while {waiting} requests wait"
        return Candidate(State.COMPUTE_BOUND, Cause.FRONTEND, (evidence,))
    return None


RULE: Final = Rule(
    Cause.FRONTEND,
    (
        Number("of a core used by the API server", lambda s: s.process_cpu_ratio, percent),
        Number("GPU busy", lambda s: s.gpu_utilization, percent),
        *QUEUE,
    ),
    judge,
)
