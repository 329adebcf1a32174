"""What the advice reasons from: one verdict, its signals, what is known of the configuration, and the sizes derived from them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from kvwatch.advice.followed import Followed
from kvwatch.capacity.concurrency import ConcurrencyLimit, limit_by_end, limit_by_present_size, limit_by_share, tokens_at_end
from kvwatch.config.policy import KnownConfig
from kvwatch.model import EngineConfig, Signals, Verdict

_SHARED_PREFIX: Final = 0.3
"""Share of prompt tokens found in the prefix cache from which prompts are taken to hold the same blocks together."""
_SMALLER_THAN_PROMPT: Final = 0.8
_LONGER: Final = 1.05
"""Running sequences are longer than the mean request when they are by more than what sampling a gauge gets wrong."""


_FEW_PREEMPTED: Final = 0.05
"""Share of the requests leaving the batch up to which a lower limit is called good. On a real vLLM of 160 blocks and requests of 300/200
tokens 10 slots had 2 to 6 % preempted and finished the most or nearly so, 12 had 21 %."""


@dataclass(frozen=True, slots=True)
class AdviceInputs:
    """One engine's inputs; every lever reads it and none changes it."""

    verdict: Verdict
    signals: Signals
    config: EngineConfig
    known: KnownConfig
    followed: Followed | None = None
    """The limit on running sequences that was set as advised, where one was."""

    @property
    def max_model_len(self) -> int | None:
        """As the operator or the startup log says, else as derived from ``cache_config_info``."""
        return self.known.max_model_len or self.config.max_model_len

    @property
    def request_tokens(self) -> float | None:
        """Mean length of a whole request: prompt admitted lately plus output of those that finished."""
        prompt, output = self.signals.next_prompt_tokens, self.signals.output_tokens
        return None if prompt is None or output is None else prompt + output

    @property
    def grown_tokens(self) -> float | None:
        """KV tokens a sequence holds when it is done growing; ``None`` while nothing has finished.

        The mean prompt and output, in whole blocks. But running sequences are not the mean ones: where lengths vary, the long ones
        stay longest. So what they are seen to hold, halfway through their output, and the other half of it, where that is more; and also
        where prompts share cached blocks, so that a sequence adds less than its prompt.
        """
        seen, prompt, output = self.signals.tokens_per_sequence, self.signals.next_prompt_tokens, self.signals.output_tokens
        if prompt is None or output is None:
            return None
        mean = tokens_at_end(prompt, output, self.config.block_size)
        if seen is None:
            return mean
        of_those_running = seen + output / 2
        return of_those_running if self._prompts_share_blocks(seen) or of_those_running > _LONGER * mean else mean

    @property
    def room(self) -> ConcurrencyLimit | None:
        """Sequences that may run at once without preempting one another; ``None`` where no size is known.

        As many as fit when all have grown to their end: on average each is half an output short of it, which is the headroom. Where
        that end is not known, as many as fit as they are seen, with a fifth of the pool left free.
        """
        pool, grown = self.signals.capacity_tokens, self.grown_tokens
        seen, share = self.signals.tokens_per_sequence, self.signals.sequence_share
        if pool and grown:
            return limit_by_end(pool, grown)
        if pool and seen:
            return limit_by_present_size(pool, seen)
        return limit_by_share(share) if share else None

    @property
    def wanted(self) -> float:
        """Sequences that would like to run: running and waiting, means of the fast window."""
        running, waiting = self.signals.fast.running, self.signals.fast.waiting
        return (running.mean if running else 0.0) + (waiting.mean if waiting else 0.0)

    @property
    def max_num_seqs(self) -> int | None:
        """As seen since it was changed as advised, else as the operator says."""
        return self.known.max_num_seqs if self.followed is None else self.followed.after

    @property
    def is_full(self) -> bool:
        """Fewer run since that was advised, and hardly any is preempted any more: fewer still would only leave the cache unused."""
        followed = self.followed
        return followed is not None and followed.lowered and (followed.preempted_now or 0.0) <= _FEW_PREEMPTED

    @property
    def most_running(self) -> float | None:
        """The highest count of running sequences in the fast window."""
        return self.signals.fast.running.peak if self.signals.fast.running else None

    def has_version(self, minimum: str) -> bool | None:
        """Whether the detected vLLM is at least *minimum*; ``None`` while its version is not known."""
        return None if self.known.vllm_version is None else _numbers(self.known.vllm_version) >= _numbers(minimum)

    def _prompts_share_blocks(self, seen: float) -> bool:
        """Most of the prompts is found in the prefix cache, and running sequences hold less than a prompt each."""
        prompt, hits = self.signals.next_prompt_tokens, self.signals.prefix_hit_ratio
        return prompt is not None and hits is not None and hits >= _SHARED_PREFIX and seen < _SMALLER_THAN_PROMPT * prompt


def power_of_two_from(tokens: float) -> int:
    """The smallest power of two that is not below *tokens*: how step budgets are written."""
    return 1 << max(0, math.ceil(math.log2(max(tokens, 1.0))))


def _numbers(version: str) -> tuple[int, ...]:
    """Such as ``0.10.1.1`` and ``v0.9.2rc1`` as something that can be compared."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in found[1].split(".")) if found else ()
