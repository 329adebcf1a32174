"""``compute_bound``/``step_budget``: prefill work fills the step (``--max-num-batched-tokens``)."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.finding import Finding, number, percent
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.classifier.thresholds import Thresholds
from kvwatch.model import Cause, Signals, State

_MOSTLY_PREFILL: Final = 0.5


def judge(signals: Signals, _thresholds: Thresholds) -> Finding | None:
    """A sustained queue that neither the cache nor the slots explain, and steps made mostly of prompt tokens.

    vLLM admits a waiting request unless the step's tokens, the slots or the blocks are used up (or it is deferred);
    the other rules have spoken before this one.
    """
    share = signals.prefill_token_share
    if not is_sustained(signals) or signals.recent.queue is None or share is None or share < _MOSTLY_PREFILL:
        return None
    evidence = [f"{number(signals.recent.queue.mean)} requests waiting, neither slots nor KV blocks short"]
    if signals.fast.steps and signals.fast.step_tokens is not None:
        evidence.append(f"{number(signals.fast.step_tokens / signals.fast.steps)} tokens a step, {percent(share)} of them prompt")
    if signals.prompt_tokens_per_second is not None:
        evidence.append(f"prefill stands at {number(signals.prompt_tokens_per_second)} tokens/s")
    return Finding(State.COMPUTE_BOUND, Cause.STEP_BUDGET, tuple(evidence))
