"""What is remembered of one engine's advice: which was followed, and what was said last."""

from __future__ import annotations

from kvwatch.advice.followed import Followed, Following
from kvwatch.advice.steady import SteadyAdvice
from kvwatch.config.policy import KnownConfig
from kvwatch.model import Change, EngineConfig, Signals, State, Verdict


class RememberedAdvice:
    """For every scrape call `observe`, ask for advice, and let `settle` say what of it is said."""

    def __init__(self) -> None:
        self._following = Following()
        self._steady = SteadyAdvice()

    def observe(self, signals: Signals | None, started: float | None) -> Followed | None:
        """What was followed of the advice so far; *started* is the Unix second the server's process started."""
        self._following.observe(signals, started)
        return self._following.followed

    def settle(
        self, at: float, verdict: Verdict, signals: Signals | None, changes: tuple[Change, ...], given: tuple[EngineConfig, KnownConfig]
    ) -> tuple[Change, ...]:
        """The advice to give; only where something binds is there a number to hold, and only once a request has finished."""
        if verdict.state in (State.KV_BOUND, State.COMPUTE_BOUND) and signals is not None and signals.output_tokens is not None:
            changes = self._steady.settle(at, verdict, changes, (*given, self._following.followed is not None))
        self._following.note(changes, signals)
        return changes
