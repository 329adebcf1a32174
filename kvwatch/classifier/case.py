"""What the advice reasons from: one verdict, its signals, what is known of the configuration, and the sizes derived from them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from kvwatch.classifier.capacity import HEADROOM, round_up_to_block, safe_sequences, sequences
from kvwatch.classifier.finding import number, percent
from kvwatch.model import EngineConfig, KnownConfig, Signals, Verdict

_SHARED_PREFIX: Final = 0.3
"""Share of prompt tokens found in the prefix cache from which prompts are taken to hold the same blocks together."""
_SMALLER_THAN_PROMPT: Final = 0.8


@dataclass(frozen=True, slots=True)
class Room:
    """How many sequences the pool lets grow to their end with a fifth of it left free, and how that was worked out."""

    sequences: int
    arithmetic: str


@dataclass(frozen=True, slots=True)
class Case:
    """One engine's case; every lever reads it and none changes it."""

    verdict: Verdict
    signals: Signals
    config: EngineConfig
    known: KnownConfig

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
    def mean_tokens(self) -> float | None:
        """KV tokens a running sequence holds on average over its life.

        Its prompt and half its output; more where running ones are seen to hold more, because long requests stay longest; as
        seen where prompts share cached blocks, or where nothing has finished yet.
        """
        seen, prompt, output = self.signals.tokens_per_sequence, self.signals.next_prompt_tokens, self.signals.output_tokens
        if prompt is None or output is None or (seen is not None and self._prompts_share_blocks(seen)):
            return seen
        return max(prompt + output / 2, seen or 0.0)

    @property
    def grown_tokens(self) -> float | None:
        """KV tokens a sequence holds when it is done growing; ``None`` while nothing has finished."""
        mean, output = self.mean_tokens, self.signals.output_tokens
        return None if mean is None or output is None or self.signals.next_prompt_tokens is None else mean + output / 2

    @property
    def room(self) -> Room | None:
        """Sequences that may run at once; ``None`` where neither a size nor a share of the pool is known.

        As they are on average, with a fifth of the pool left free; but no more than fit when all of them have grown to their
        end at once, as requests that were admitted together do.
        """
        pool, share = self.signals.capacity_tokens, self.signals.sequence_share
        mean, end = (None if t is None else round_up_to_block(t, self.config.block_size) for t in (self.mean_tokens, self.grown_tokens))
        if pool and mean:
            usual = Room(safe_sequences(pool, mean), f"{number(pool)} KV tokens ÷ {number(mean)} tokens per sequence × {1 - HEADROOM:g}")
            if end is None or sequences(pool, end) >= usual.sequences:
                return usual
            return Room(sequences(pool, end), f"{number(pool)} KV tokens ÷ {number(end)} tokens per sequence at its end")
        if share:
            arithmetic = f"a running sequence holds {percent(share)} of the pool: 1 ÷ {share:.3f} × {1 - HEADROOM:g}"
            return Room(safe_sequences(1.0, share), arithmetic)
        return None

    @property
    def wanted(self) -> float:
        """Sequences that would like to run: running and waiting, means of the fast window."""
        running, waiting = self.signals.fast.running, self.signals.fast.waiting
        return (running.mean if running else 0.0) + (waiting.mean if waiting else 0.0)

    @property
    def most_running(self) -> float | None:
        """The highest count of running sequences in the fast window."""
        return self.signals.fast.running.peak if self.signals.fast.running else None

    def has_version(self, minimum: str) -> bool | None:
        """Whether the detected vLLM is at least *minimum*; ``None`` while its version is not known."""
        return None if self.known.vllm_version is None else _numbers(self.known.vllm_version) >= _numbers(minimum)

    def _prompts_share_blocks(self, held: float) -> bool:
        prompt, hits = self.signals.next_prompt_tokens, self.signals.prefix_hit_ratio
        return prompt is not None and hits is not None and hits >= _SHARED_PREFIX and held < _SMALLER_THAN_PROMPT * prompt


def power_of_two_from(tokens: float) -> int:
    """The smallest power of two that is not below *tokens*: how step budgets are written."""
    return 1 << max(0, math.ceil(math.log2(max(tokens, 1.0))))


def _numbers(version: str) -> tuple[int, ...]:
    """Such as ``0.10.1.1`` and ``v0.9.2rc1`` as something that can be compared."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in found[1].split(".")) if found else ()
