"""How large the batch really was, from counters, whatever the gauges caught.

Gauges are set after a step: during a long prefill step they still show the moment before it, and a scrape is most likely to
fall into just such a step. Where requests come in waves a scrape may miss every one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kvwatch.classifier.windows import increase
from kvwatch.model import Histogram, Snapshot

_BELIEVED: Final = 2.0
"""A batch more than twice the largest that was ever seen is a clock that jumped."""


def batch(snapshots: Sequence[Snapshot], most: float, *, prefill: bool) -> float | None:
    """Sequences that got tokens at one time (or, with *prefill*, held blocks), two ways, the larger: outputs per step, and Little's law.

    With several API servers each counts the steps it sees, and outputs per step are too few; front ends and old versions count no
    steps at all. Little's law has neither flaw, but it is a mean over rest as well, and the wait of a preempted sequence counts as
    decoding: where steps are counted and sequences were preempted, steps alone tell. *most* is the highest running count ever seen.
    """
    outputs = _outputs_per_step(snapshots)
    if outputs is not None and increase(snapshots[0].preemptions, snapshots[-1].preemptions):
        return outputs
    return largest((outputs, _time_spent(snapshots, most, prefill=prefill)))


def tokens_per_step(snapshots: Sequence[Snapshot], most: float) -> float | None:
    """Tokens computed in a mean step; several API servers count one step several times, which Little's law tells."""
    first, last = snapshots[0], snapshots[-1]
    steps, tokens = increase(first.steps, last.steps), increase(first.step_tokens, last.step_tokens)
    if not steps or tokens is None:
        return None
    outputs, decoding = _outputs_per_step(snapshots), batch(snapshots, most, prefill=False)
    times_counted = decoding / outputs if outputs and decoding else 1.0
    return tokens / steps * times_counted


def largest(counts: Iterable[float | None]) -> float | None:
    """The largest of the counts that are known."""
    return max((count for count in counts if count is not None), default=None)


def _time_spent(snapshots: Sequence[Snapshot], most: float, *, prefill: bool) -> float | None:
    """Seconds that sequences spent decoding (and in *prefill*) per second: how many there were, by Little's law.

    ``None`` for far more than *most*: vLLM subtracts unguarded clocks (#49135), and after a freeze its length is in every sum.
    """
    first, last = snapshots[0], snapshots[-1]
    spent = _increase_of_sum(first.inter_token_latency, last.inter_token_latency)
    if spent is None or last.at <= first.at:
        return None
    if prefill:
        spent += increase(first.prefill_time_sum, last.prefill_time_sum) or 0.0
    count = spent / (last.at - first.at)
    return count if count <= _BELIEVED * most else None


def _increase_of_sum(first: Histogram | None, last: Histogram | None) -> float | None:
    return None if first is None or last is None else increase(first.sum, last.sum)


def _outputs_per_step(snapshots: Sequence[Snapshot]) -> float | None:
    """Tokens handed out per step and request: an engine output is one inter-token latency, or a first token, per sequence.

    Unlike ``generation_tokens`` this does not count speculated tokens twice.
    """
    first, last = snapshots[0], snapshots[-1]
    steps = increase(first.steps, last.steps)
    if not steps or first.inter_token_latency is None or last.inter_token_latency is None:
        return None
    outputs = increase(first.inter_token_latency.count, last.inter_token_latency.count)
    if outputs is None:
        return None
    if first.time_to_first_token is not None and last.time_to_first_token is not None:
        outputs += increase(first.time_to_first_token.count, last.time_to_first_token.count) or 0.0
    return outputs / steps
