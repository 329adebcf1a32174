"""``check --all``: every rule with what it says at this moment, or the numbers that left it silent. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kvwatch.classifier import rules
from kvwatch.classifier.rules import PRECEDENCE, Rule
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, GaugeStats, Signals, State
from kvwatch.text import number, percent

Number = tuple[str, Callable[[Signals], float | None], Callable[[float], str]]
"""What a number is called, where it stands, and how it is written."""
Row = tuple[str, str]
"""The cause a rule looks for, and what it says or why it is silent."""


def _mean(stats: GaugeStats | None) -> float | None:
    return stats.mean if stats is not None else None


def _peak(stats: GaugeStats | None) -> float | None:
    return stats.peak if stats is not None else None


def _running(signals: Signals) -> float | None:
    return _mean(signals.recent.running)


def _queue(signals: Signals) -> float | None:
    return _mean(signals.recent.queue)


def _queued(signals: Signals) -> float | None:
    return signals.recent.queued_share


def _fullest(signals: Signals) -> float | None:
    return _peak(signals.fast.kv_usage)


_QUEUE: Final[tuple[Number, ...]] = (
    ("waiting for capacity", _queue, number),
    ("scrapes with a queue", _queued, percent),
)
ASKED: Final[dict[Rule, tuple[Cause, tuple[Number, ...]]]] = {
    rules.stalled.judge: (
        Cause.STALLED,
        (
            ("seconds without a token", lambda s: s.seconds_without_progress, number),
            ("seconds without any movement", lambda s: s.seconds_without_life, number),
        ),
    ),
    rules.idle.judge: (Cause.IDLE, (("running", lambda s: s.running, number), ("waiting", lambda s: s.waiting, number))),
    rules.preempting.judge: (
        Cause.PREEMPTING,
        (
            ("preemptions", lambda s: s.preempted, number),
            ("of the requests that left the running batch", lambda s: s.preempted_share, percent),
            ("KV cache at its fullest", _fullest, percent),
        ),
    ),
    rules.deferred.judge: (
        Cause.DEFERRED,
        (("deferred", lambda s: _mean(s.recent.deferred), number), ("waiting", lambda s: _mean(s.recent.waiting), number)),
    ),
    rules.admission.judge: (
        Cause.ADMISSION,
        (
            *_QUEUE,
            ("KV cache at its fullest", _fullest, percent),
            ("KV tokens for the next prompt", lambda s: s.next_prompt_tokens, number),
        ),
    ),
    rules.step_budget.judge: (
        Cause.STEP_BUDGET,
        (
            *_QUEUE,
            ("of the computed tokens are prompt", lambda s: s.prefill_token_share, percent),
            ("tokens a step", lambda s: s.tokens_per_step, number),
        ),
    ),
    rules.sequence_slots.judge: (
        Cause.SEQUENCE_SLOTS,
        (*_QUEUE, ("running", _running, number), ("most ever or max_num_seqs", lambda s: s.running_ceiling, number)),
    ),
    rules.frontend.judge: (
        Cause.FRONTEND,
        (
            ("of a core used by the API server", lambda s: s.process_cpu_ratio, percent),
            ("GPU busy", lambda s: s.gpu_utilization, percent),
            *_QUEUE,
        ),
    ),
    rules.compute.judge: (Cause.COMPUTE, (*_QUEUE, ("running", _running, number))),
    rules.healthy.judge: (Cause.OK, (("running", _running, number), *_QUEUE)),
}
"""Of each rule: the cause it looks for, and the numbers it looks at."""


def asked(signals: Signals, policy: Policy) -> Iterator[Row]:
    """Every rule in the order of asking; the first that speaks decides, once it has spoken for long enough."""
    decided = False
    for rule in PRECEDENCE:
        cause, numbers = ASKED[rule]
        finding = rule(signals, policy)
        if finding is None:
            seen = ", ".join(f"{what} {_written(look(signals), write)}" for what, look, write in numbers)
            yield cause, f"silent: looks for “{_meaning(cause)}”, and saw {seen}"
        else:
            how = "outranked by the rule above, else " if decided else ""
            yield cause, f"{how}says {finding.state} / {finding.cause}: {'; '.join(finding.evidence)}"
            decided = True


def _meaning(cause: Cause) -> str:
    return cause.meaning.rstrip(".") if cause.state is not State.HEALTHY or cause is Cause.IDLE else "no sustained queue"


def _written(value: float | None, write: Callable[[float], str]) -> str:
    return "not known" if value is None else write(value)
