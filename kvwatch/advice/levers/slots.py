"""Levers on how many sequences run at once and how much prompt a step takes."""

from __future__ import annotations

import math
from typing import Final

from kvwatch.advice.inputs import AdviceInputs, least_step, power_of_two_from
from kvwatch.model import Change
from kvwatch.text import number, percent

_JUMP: Final = 5.0
"""P99 over median of the inter-token latency from which decoding is called uneven."""
_FEWEST_STEP_TOKENS: Final = 512
"""The smallest step budget that is advised. Lower: even short prompts take several steps."""
_MOST_STEP_TOKENS: Final = 16384
"""vLLM's own largest default (for throughput on the largest cards); past it a step is as long as its tokens, and only slower to react."""


def fewer_sequences(inputs: AdviceInputs) -> Change | None:
    """Preemptions stop when no more sequences run than the pool can hold once they have grown."""
    current, room = inputs.max_num_seqs, inputs.room
    if current == 1 or inputs.is_full:
        return None
    if room is None:
        return Change(
            lever="--max-num-seqs",
            current=None if current is None else str(current),
            reason="the pool size is not known: look up 'KV cache size: N tokens' in the startup log and give it as kv_cache_tokens",
            effect="preemptions stop once no more sequences run than the pool holds",
            caution="until then halve it and measure again",
        )
    redone = inputs.signals.recompute_ratio
    share = f"; about {percent(redone)} of the work is being done again" if redone else ""
    return Change(
        lever="--max-num-seqs",
        current=None if current is None else str(current),
        proposed=str(room.sequences),
        reason=room.arithmetic + share,
        effect="preemptions stop; requests wait in the queue once instead of being computed twice",
        caution=_unfinished(inputs) or "the queue stays as long as demand does: this ends the waste, not the overload",
    )


def more_sequences(inputs: AdviceInputs) -> Change | None:
    """The slots are the limit and the cache has room: as many as the cache holds, or as want to run."""
    ceiling = inputs.max_num_seqs or inputs.signals.running_ceiling
    if ceiling is None or inputs.is_full:
        return None
    current, room = math.floor(ceiling), inputs.room
    wanted = math.ceil(inputs.wanted)
    inferred = "" if inputs.known.max_num_seqs else f"{current} is inferred from the plateau of the running count; "
    if room is None:
        return Change(
            lever="--max-num-seqs",
            current=str(current),
            reason=f"{inferred}how many the cache holds is not known: look up 'KV cache size: N tokens' in the startup log",
            effect="requests stop waiting for a slot",
            caution="double it while throughput still grows and nothing is preempted",
        )
    least = least_step(current)
    proposed = min(room.sequences, max(wanted, current + least))
    if proposed < current + least:
        return None
    want = f", {number(wanted)} want to run" if wanted < room.sequences else ""
    return Change(
        lever="--max-num-seqs",
        current=str(current),
        proposed=str(proposed),
        reason=f"{inferred}the cache holds {number(room.sequences)} ({room.arithmetic}){want}",
        effect="requests stop waiting for a slot; throughput grows until the processor or the cache is the limit",
        caution="go there by doubling and stop one step before latency takes off",
    )


def batch_that_still_pays(inputs: AdviceInputs) -> Change | None:
    """A smaller batch did as much work: its size gives the same throughput at a lower inter-token latency."""
    found = inputs.signals.saturation
    if found is None or round(found.running_then) >= round(found.running_now):
        return None
    return Change(
        lever="--max-num-seqs",
        current=None if inputs.known.max_num_seqs is None else str(inputs.known.max_num_seqs),
        proposed=str(max(1, round(found.running_then))),
        reason=f"{number(found.running_then)} running yielded {number(found.tokens_per_second_then)} tokens/s of prompts and answers, "
        f"{number(found.running_now)} yield {number(found.tokens_per_second_now)}",
        effect="as many tokens per second, each sooner after the last",
        caution="requests wait in the queue instead: only for those who mind inter-token latency more than time to first token",
    )


def larger_step(inputs: AdviceInputs) -> Change | None:
    """Prefill fills the step: about twice the usual prompt is a budget that rarely splits one."""
    prompt, current = inputs.signals.next_prompt_tokens, inputs.known.max_num_batched_tokens
    per_step = inputs.signals.tokens_per_step
    if current is None and (prompt is None or per_step is None):
        reason = "the step budget is not on /metrics: look up max_num_batched_tokens in the startup log and give it to kvwatch"
        return _step(None, None, reason)
    if current is not None:
        goal = min(_MOST_STEP_TOKENS, max(2 * current, power_of_two_from(2 * prompt) if prompt is not None else 0))
        if goal <= current:
            return None
        why = f"{number(current)} tokens a step, the usual prompt is {number(prompt)}" if prompt is not None else "prefill fills the step"
        return _step(str(current), str(goal), f"{why}: room for two")
    assert prompt is not None and per_step is not None  # noqa: S101, PT018 - the branches above leave only this
    if per_step > _MOST_STEP_TOKENS / 2:
        return None
    goal = min(_MOST_STEP_TOKENS, power_of_two_from(2 * max(prompt, per_step)))
    return _step(None, str(goal), f"steps take {number(per_step)} tokens and the usual prompt is {number(prompt)}: room for two")


def smaller_step(inputs: AdviceInputs) -> Change | None:
    """Decoding is uneven because whole prompts sit in its steps: a smaller budget smooths it."""
    latency, current, prompt = inputs.signals.inter_token_latency, inputs.known.max_num_batched_tokens, inputs.signals.next_prompt_tokens
    if latency is None or current is None or prompt is None or latency.p50 <= 0 or latency.p99 < _JUMP * latency.p50:
        return None
    goal = max(_FEWEST_STEP_TOKENS, power_of_two_from(2 * prompt))
    if goal >= current:
        return None
    return Change(
        lever="--max-num-batched-tokens",
        current=str(current),
        proposed=str(goal),
        reason=f"the 99th percentile between tokens is {latency.p99 * 1000:.0f} ms at a median of {latency.p50 * 1000:.0f} ms; "
        f"twice the usual prompt is {number(2 * prompt)} tokens",
        effect="prompts are computed in smaller pieces, so that running requests pause less",
        caution="time to first token grows",
    )


def _step(current: str | None, proposed: str | None, reason: str) -> Change:
    return Change(
        lever="--max-num-batched-tokens",
        current=current,
        proposed=proposed,
        reason=reason,
        effect="more prompt per step: shorter time to first token",
        caution="running requests pause longer between tokens; when prefill tokens/s do not rise, the processor is the limit",
    )


def _unfinished(inputs: AdviceInputs) -> str | None:
    """A caution where no request has finished, so that sizes are those of half-grown sequences."""
    if inputs.request_tokens is None:
        return "nothing has finished yet: sequences will grow past the size counted here, halve again if preemptions go on"
    return None
