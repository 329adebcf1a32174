"""``compute_bound``/``compute``: the processor itself; more requests in the batch, no more tokens out."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Candidate, Rule
from kvwatch.classifier.rules.numbers import QUEUE, RUNNING
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Saturation, Signals, State
from kvwatch.text import counted, number


def judge(signals: Signals, _policy: Policy) -> Candidate | None:
    """A smaller batch did as much work, or the same one several times as much; or a queue that no other limit explains."""
    if signals.saturation is not None:
        return _less_than_once(signals.saturation, "tokens/s of prompts and answers", "", ": a larger batch no longer helps")
    if signals.slowdown is not None:
        return _less_than_once(signals.slowdown, "generated tokens/s", " with contexts as long", "; /metrics does not say why")
    if is_sustained(signals) and signals.recent.queue is not None and signals.fast.kv_usage is not None:
        evidence = f"{counted(signals.recent.queue.mean, 'request')} waiting, and neither KV blocks, slots nor prefill explain it"
        return Candidate(State.COMPUTE_BOUND, Cause.COMPUTE, (evidence, *_plateau(signals)))
    return None


def _less_than_once(found: Saturation, unit: str, like: str, so: str) -> Candidate:
    """Evidence of the work, in *unit*, of the present batch and an earlier one; *like* says what the two share, *so* what follows."""
    evidence = (
        f"{number(found.running_now)} running yield {number(found.tokens_per_second_now)} {unit}, "
        f"{number(found.running_then)}{like} yielded {number(found.tokens_per_second_then)}{so}"
    )
    return Candidate(State.COMPUTE_BOUND, Cause.COMPUTE, (evidence,))


def _plateau(signals: Signals) -> tuple[str, ...]:
    """A batch that stands below the limit that was given: the limit is another one than that."""
    if signals.running_plateau is None or signals.running_ceiling is None:
        return ()
    given = f"below the max_num_seqs of {number(signals.running_ceiling)} that kvwatch was given"
    return (f"running stands at {number(signals.running_plateau)}, {given}: see what the server was started with",)


RULE: Final = Rule(Cause.COMPUTE, (*QUEUE, RUNNING), judge)
