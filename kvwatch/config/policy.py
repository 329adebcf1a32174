"""The settings that are policy: what the classifier, the advice and the alerts are given. Values only, each written once, here.

`kvwatch.config.settings` makes them settings of the daemon. Times in seconds, ratios 0..1.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvwatch.config.values import PositiveDuration, Ratio


class Section(BaseModel):
    """A group of knobs; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


class KnownConfig(Section):
    """What /metrics does not say and an operator knows; used when given, inferred otherwise."""

    max_num_seqs: Annotated[int | None, Field(gt=0)] = None
    """vLLM's --max-num-seqs; the highest running count seen where nobody says."""
    max_num_batched_tokens: Annotated[int | None, Field(gt=0)] = None
    """vLLM's --max-num-batched-tokens."""
    max_model_len: Annotated[int | None, Field(gt=0)] = None
    """vLLM's --max-model-len."""
    kv_cache_tokens: Annotated[int | None, Field(gt=0)] = None
    """KV pool of one engine in tokens, as vLLM's startup log says it."""
    vllm_version: str | None = None
    """Version of vLLM, for advice that fits it, such as 0.10.2."""

    @staticmethod
    def first_of(*sources: KnownConfig) -> KnownConfig:
        """Each value from the first of *sources* that knows it."""
        names = KnownConfig.model_fields
        return KnownConfig(**{name: next((v for one in sources if (v := getattr(one, name)) is not None), None) for name in names})


class Windows(Section):
    """Over how long the numbers are judged."""

    fast: PositiveDuration = 30.0
    """The window that ends the page when the storm ends."""
    slow: PositiveDuration = 120.0
    """The window that makes a storm worth a page; also the one of the latency objectives."""

    @model_validator(mode="after")
    def _fast_is_shorter(self) -> Self:
        if self.fast >= self.slow:
            raise ValueError("window.fast must be shorter than window.slow")
        return self


class Thresholds(Section):
    """Policy: what counts as too much."""

    kv_watermark: Ratio = 0.90
    """KV usage above which a cache is called high, 0 to 1."""
    storm_ratio: Ratio = 0.10
    """Preemption ratio above which, in both windows, a storm is paged, 0 to 1."""
    storm_min_preemptions: Annotated[int, Field(ge=1)] = 5
    """Preemptions in the slow window without which no storm is paged."""
    stall: PositiveDuration = 10.0
    """Time without a token, while there is work, after which an engine is called stalled if nothing else of it moves either."""
    silence: PositiveDuration = 60.0
    """Time without a token, while there is work, after which an engine is called stalled whatever else moves."""
    forget: PositiveDuration = 900.0
    """How long an engine that is gone while its siblings answer is still named, and alerted; then it is forgotten."""


class Objectives(Section):
    """Latency objectives (95th percentile over the slow window); an alert exists only where one is set."""

    time_to_first_token: PositiveDuration | None = None
    """Longest acceptable time to first token."""
    inter_token_latency: PositiveDuration | None = None
    """Longest acceptable time between two tokens."""
    e2e_request_latency: PositiveDuration | None = None
    """Longest acceptable time of a whole request."""


class Policy(Section):
    """Everything a judgement needs that is policy, not physics."""

    window: Windows = Windows()
    thresholds: Thresholds = Thresholds()
    objectives: Objectives = Objectives()
