"""``healthy``: nothing waits, nothing is preempted; said only on evidence."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.hysteresis import RECOVERY_SECONDS
from kvwatch.classifier.rule import Candidate, Rule
from kvwatch.classifier.rules.numbers import QUEUE, RUNNING
from kvwatch.classifier.rules.pressure import held_by_nobody
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import counted, number, percent

_LONG: Final = 60.0
"""A cache above the watermark for a minute is a scale-out signal, a peak is not."""


def judge(signals: Signals, policy: Policy) -> Candidate | None:
    """Running and waiting are known and no other rule has spoken; a queue that no rule could explain is not health."""
    running, waiting, usage = signals.recent.running, signals.recent.waiting, signals.slow.kv_usage
    if running is None or waiting is None or is_sustained(signals):
        return None
    evidence = f"{number(running.mean)} running, {number(waiting.mean)} waiting"
    if usage is not None and signals.slow.seconds >= _LONG and usage.mean > policy.thresholds.kv_watermark:
        high = f"KV cache at {percent(usage.mean)} on average for {number(signals.slow.seconds)} s"
        return Candidate(State.HEALTHY, Cause.KV_HIGH, (evidence, high, _preemptions(signals), *held_by_nobody(signals)))
    if usage is not None:
        evidence += f", KV cache at {percent(signals.kv_usage if signals.kv_usage is not None else usage.last)}"
    rested = signals.cool_seconds is not None and signals.cool_seconds >= RECOVERY_SECONDS
    return Candidate(State.HEALTHY, Cause.OK, (evidence, _preemptions(signals), *held_by_nobody(signals)), sustained=rested)


def _preemptions(signals: Signals) -> str:
    count, seconds = signals.fast.preemptions, number(signals.fast.seconds)
    return f"preemptions are not reported in these {seconds} s" if count is None else f"{counted(count, 'preemption')} in {seconds} s"


RULE: Final = Rule(Cause.OK, (RUNNING, *QUEUE), judge)
