"""How many sequences the cache is said to hold, held still: what every surface shows and the advice reasons from. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from kvwatch.advice.inputs import SMALLEST_STEP, AdviceInputs
from kvwatch.advice.steady import HOLD_SECONDS, Lasting, differ
from kvwatch.capacity.concurrency import ConcurrencyLimit
from kvwatch.capacity.pool import HEADROOM
from kvwatch.model import Cause, Signals
from kvwatch.text import number


def corrected(inputs: AdviceInputs) -> ConcurrencyLimit | None:
    """The limit by the sizes of requests; below what runs where no more than that ran, or may run, and yet some are preempted."""
    room = inputs.room
    if room is None:
        return None
    if room.sequences < 1:
        room = replace(room, sequences=1)
    most, allowed = inputs.most_running, inputs.max_num_seqs
    ran = room.sequences >= (math.inf if most is None else most) or (allowed is not None and room.sequences > allowed - SMALLEST_STEP)
    limit = min((count for count in (allowed, most) if count is not None), default=None)
    if limit is None or not ran or inputs.verdict.cause is not Cause.PREEMPTING or inputs.is_full:
        return room
    running = min(limit, inputs.signals.running_while_queued or limit)
    return ConcurrencyLimit(
        max(1, math.floor(running * (1 - HEADROOM))),
        f"the mean size would allow {room.sequences}, yet {number(running)} running are preempted: {number(running)} × {1 - HEADROOM:g}",
    )


class SteadyLimit:
    """The limit that is said of one engine: while something binds, it stays until another has been found for long enough."""

    def __init__(self) -> None:
        self._said: ConcurrencyLimit | None = None
        self._given: object = None
        self._differs = Lasting()

    def settle(self, at: float, inputs: AdviceInputs, given: object, *, hold: bool) -> Signals:
        """The signals with the limit to say at *at* (seconds); not held without *hold*, and forgotten with another *given*."""
        found = corrected(inputs)
        patience = HOLD_SECONDS if at - inputs.verdict.since >= HOLD_SECONDS else 0.0  # before, means are of the time before as well
        if not hold or given != self._given or self._said is None or found is None or self._is_over(at, self._said, found, patience):
            self._said, self._given, self._differs = found, given, Lasting()
        said = self._said
        if said is None or said == inputs.room:
            return inputs.signals
        return replace(inputs.signals, sustainable_sequences=said.sequences, sustainable_arithmetic=said.arithmetic)

    def _is_over(self, at: float, said: ConcurrencyLimit, found: ConcurrencyLimit, patience: float) -> bool:
        """Whether the evidence has asked for another number for *patience* seconds."""
        return self._differs.for_as_long_as(patience, at, holds=differ(said.sequences, found.sequences))
