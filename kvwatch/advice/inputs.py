"""What the advice reasons from: one verdict, its signals, what is known of the configuration, and the sizes derived from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kvwatch.advice.followed import Followed
from kvwatch.advice.neighbours import NOBODY, Neighbours
from kvwatch.capacity.concurrency import ConcurrencyLimit
from kvwatch.capacity.versions import is_at_least
from kvwatch.config.policy import KnownConfig
from kvwatch.model import EngineConfig, Signals, Verdict

_USED: Final = 0.5
"""Usage of the cache (0..1) below which it limits nothing: a request that needs the other half is one of few, and rare."""
SMALLEST_STEP: Final = 2
"""Sequences: one more or one fewer is within what the mean size of a request gets wrong."""
_WORTHWHILE: Final = 0.25
"""Share by which the cache must hold more sequences than may run for more slots to be worth a restart: below it the blocks bind next.
On a real vLLM of 176 blocks with 8 slots bound, 32 slots had 50 % preempted and finished less than half."""
_FEW_PREEMPTED: Final = 0.10
"""Share of the requests leaving the batch up to which a lower limit is called good: what pages nobody. On a real vLLM of 160 blocks and
requests of 300/200 tokens 10 slots had 0 to 6 % preempted and finished the most or nearly so, 12 had 21 %."""


@dataclass(frozen=True)
class AdviceInputs:
    """One engine's inputs; every lever reads it and none changes it."""

    verdict: Verdict
    signals: Signals
    config: EngineConfig
    known: KnownConfig
    followed: Followed | None = None
    """The limit on running sequences that was set as advised, where one was."""
    neighbours: Neighbours = NOBODY

    @property
    def max_model_len(self) -> int | None:
        """As the operator or the startup log says, else as derived from ``cache_config_info``."""
        return self.known.max_model_len or self.config.max_model_len

    @property
    def request_tokens(self) -> float | None:
        """Mean length of a whole request: prompt admitted lately plus output of those that finished."""
        prompt, output = self.signals.next_prompt_tokens, self.signals.output_tokens
        return None if prompt is None or output is None else prompt + output

    @cached_property
    def room(self) -> ConcurrencyLimit | None:
        """Sequences that may run at once without preempting one another; ``None`` where no size is known."""
        found, arithmetic = self.signals.sustainable_sequences, self.signals.sustainable_arithmetic
        return None if found is None else ConcurrencyLimit(found, arithmetic or "")

    @property
    def wanted(self) -> float:
        """Sequences that would like to run: running and waiting, means of the fast window."""
        running, waiting = self.signals.fast.running, self.signals.fast.waiting
        return (running.mean if running else 0.0) + (waiting.mean if waiting else 0.0)

    @property
    def left_out(self) -> float | None:
        """Of those, how many the cache does not hold; ``None`` where no size is known."""
        return None if self.room is None else max(0.0, self.wanted - self.room.sequences)

    @property
    def cache_is_used(self) -> bool:
        """At least half of the cache was in use at some moment of the fast window, or nobody knows: else more of it helps nobody."""
        usage = self.signals.fast.kv_usage
        return usage is None or usage.peak >= _USED

    def gain(self, sequences: float | None) -> float | None:
        """Of *sequences* more that could run, those that would: no more than are left out now."""
        return None if sequences is None or self.left_out is None else min(sequences, self.left_out)

    @property
    def max_num_seqs(self) -> int | None:
        """As seen since it was changed as advised, else as the operator says."""
        return self.known.max_num_seqs if self.followed is None or self.followed.limit is None else self.followed.limit

    @property
    def is_full(self) -> bool:
        """Fewer run since that was advised, hardly any is preempted any more, and the cache holds no more than about as many."""
        followed = self.followed
        if followed is None or followed.limit is None or not followed.lowered or (followed.now.preempted or 0.0) > _FEW_PREEMPTED:
            return False
        return self.room is None or self.room.sequences < followed.limit + least_step(followed.limit)

    @property
    def most_running(self) -> float | None:
        """The highest count of running sequences in the fast window."""
        return self.signals.fast.running.peak if self.signals.fast.running else None

    def has_version(self, minimum: str) -> bool | None:
        """Whether the detected vLLM is at least *minimum*; ``None`` while its version is not known."""
        return is_at_least(self.known.vllm_version, minimum)


def least_step(sequences: int) -> int:
    """By how many more the cache must hold for a higher limit to be worth a restart."""
    return max(SMALLEST_STEP, math.ceil(_WORTHWHILE * sequences))


def power_of_two_from(tokens: float) -> int:
    """The smallest power of two that is not below *tokens*: how step budgets are written."""
    return 1 << max(0, math.ceil(math.log2(max(tokens, 1.0))))
