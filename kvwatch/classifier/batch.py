"""How large the batch really was, from counters, whatever the gauges caught.

Gauges are set after a step: during a long prefill step they still show the moment before it, and a scrape is most likely to
fall into just such a step. Where requests come in waves a scrape may miss every one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvwatch.classifier.windows import increase
from kvwatch.model import Snapshot

_BELIEVED: Final = 2.0
"""A batch more than twice the largest that was ever seen is a clock that jumped."""


@dataclass(frozen=True, slots=True)
class Batch:
    """How large the batch was over one window, in sequences at one time; ``None`` is not known."""

    decoding: float | None
    """That got tokens."""
    held: float | None
    """That held blocks, in their prefill or decoding."""
    outputs_per_step: float | None
    """That were handed something in a step, as far as each API server counts: too few with several of them."""


def batch_of(first: Snapshot, last: Snapshot, most: float) -> Batch:
    """The batch between two snapshots, two ways, the larger of both: outputs per step, and Little's law.

    With several API servers each counts the steps it sees, and outputs per step are too few; front ends and old versions count no
    steps at all. Little's law has neither flaw, but it is a mean over rest as well, and the wait of a preempted sequence counts as
    decoding: where steps are counted and sequences were preempted, steps alone tell. *most* is the highest running count ever seen.
    """
    outputs = _outputs_per_step(first, last)
    if outputs is not None and increase(first.preemptions, last.preemptions):
        return Batch(outputs, outputs, outputs)
    decoding, held = (largest((outputs, _time_spent(first, last, most, prefill=prefill))) for prefill in (False, True))
    return Batch(decoding, held, outputs)


def tokens_per_step(first: Snapshot, last: Snapshot, batch: Batch) -> float | None:
    """Tokens computed in a mean step; several API servers count one step several times, which Little's law tells."""
    steps, tokens = increase(first.steps, last.steps), increase(first.step_tokens, last.step_tokens)
    if not steps or tokens is None:
        return None
    times_counted = batch.decoding / batch.outputs_per_step if batch.outputs_per_step and batch.decoding else 1.0
    return tokens / steps * times_counted


def largest(counts: Iterable[float | None]) -> float | None:
    """The largest of the counts that are known."""
    return max((count for count in counts if count is not None), default=None)


def _time_spent(first: Snapshot, last: Snapshot, most: float, *, prefill: bool) -> float | None:
    """Seconds that sequences spent decoding (and in *prefill*) per second: how many there were, by Little's law.

    ``None`` for far more than *most*: vLLM subtracts unguarded clocks (#49135), and after a freeze its length is in every sum.
    """
    before, after = first.inter_token_latency, last.inter_token_latency
    spent = None if before is None or after is None else increase(before.sum, after.sum)
    if spent is None or last.at <= first.at:
        return None
    if prefill:
        spent += increase(first.prefill_time_sum, last.prefill_time_sum) or 0.0
    count = spent / (last.at - first.at)
    return count if count <= _BELIEVED * most else None


def _outputs_per_step(first: Snapshot, last: Snapshot) -> float | None:
    """Tokens handed out per step and request: an engine output is one inter-token latency, or a first token, per sequence.

    Unlike ``generation_tokens`` this does not count speculated tokens twice.
    """
    steps = increase(first.steps, last.steps)
    if not steps or first.inter_token_latency is None or last.inter_token_latency is None:
        return None
    outputs = increase(first.inter_token_latency.count, last.inter_token_latency.count)
    if outputs is None:
        return None
    if first.time_to_first_token is not None and last.time_to_first_token is not None:
        outputs += increase(first.time_to_first_token.count, last.time_to_first_token.count) or 0.0
    return outputs / steps
