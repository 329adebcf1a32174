"""``compute_bound``/``step_budget``: prefill work fills the step (``--max-num-batched-tokens``)."""

from __future__ import annotations

from typing import Final

from kvwatch.classifier.rule import Candidate, Number, Rule
from kvwatch.classifier.rules.numbers import QUEUE
from kvwatch.classifier.rules.pressure import is_pinned, share_of_steps_with_prefill, stands_at_ceiling
from kvwatch.classifier.rules.queue import is_sustained
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, Signals, State
from kvwatch.text import counted, number, percent

_MOSTLY_PREFILL: Final = 0.5
"""Share of the computed tokens (0..1) that are prompt. Lower: a decoding engine is told to enlarge its step."""
_SMALLEST_BUDGET: Final = 128.0
"""Nobody runs vLLM with a smaller step (the default is 2048 and more): fewer tokens a step are not a full one."""
_IN_MOST_STEPS: Final = 0.5
"""Share of the steps (0..1) with a prompt under way, where the budget is not known. Lower: taken slots are called full steps."""
_FULL_STEP: Final = 0.9
"""Part of the budget a mean step must use: whole blocks and single prompts leave some of it. Lower: half-empty steps count as full."""


def judge(signals: Signals, _policy: Policy) -> Candidate | None:
    """A sustained queue, steps made mostly of prompt tokens, and either a prompt under way in most of them or no other limit.

    vLLM admits a waiting request unless the step's tokens, the slots or the blocks are used up (or it is deferred), so
    what neither blocks nor slots explain is the step. So is one long prompt that takes many of them.
    """
    share, queue = signals.prefill_token_share, signals.recent.queue
    if not is_sustained(signals) or queue is None:
        return None
    if _long_prompt_is_under_way(signals):
        under_way = f"{number(signals.sequences_prefilling or 0)} of the running sequences in their prefill"
        reason = f"{under_way}, none of which has come to its end in {number(signals.fast.seconds)} s, while the KV cache fills"
        return Candidate(State.COMPUTE_BOUND, Cause.STEP_BUDGET, (f"{counted(queue.mean, 'request')} waiting", reason))
    if share is None or share < _MOSTLY_PREFILL:
        return None
    tokens = signals.tokens_per_step
    if tokens is not None and tokens < _SMALLEST_BUDGET:
        return None
    if stands_at_ceiling(signals) and not _steps_are_full(signals):
        return None
    evidence = [f"{counted(queue.mean, 'request')} waiting"]
    if tokens is not None:
        evidence.append(f"{number(tokens)} tokens a step, {percent(share)} of them prompt")
    if signals.prompt_tokens_per_second is not None:
        evidence.append(f"prefill stands at {number(signals.prompt_tokens_per_second)} tokens/s")
    return Candidate(State.COMPUTE_BOUND, Cause.STEP_BUDGET, tuple(evidence))


def _long_prompt_is_under_way(signals: Signals) -> bool:
    """A prompt longer than the fast window: vLLM counts its tokens with its first one, and until then only the cache shows it."""
    if signals.fast.prompt_tokens != 0 or signals.seconds_to_full is None or (signals.ceiling_known and is_pinned(signals)):
        return False
    return (signals.sequences_prefilling or 0.0) >= _IN_MOST_STEPS


def _steps_are_full(signals: Signals) -> bool:
    tokens = signals.tokens_per_step
    if signals.step_token_budget is not None and tokens is not None:
        return tokens >= _FULL_STEP * signals.step_token_budget
    return (share_of_steps_with_prefill(signals) or 0.0) >= _IN_MOST_STEPS


RULE: Final = Rule(
    Cause.STEP_BUDGET,
    (
        *QUEUE,
        Number("of the computed tokens are prompt", lambda s: s.prefill_token_share, percent),
        Number("tokens a step", lambda s: s.tokens_per_step, number),
    ),
    judge,
)
