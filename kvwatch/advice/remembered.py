"""What is remembered of one engine's advice: which was followed, what the cache was said to hold, and what was said last."""

from __future__ import annotations

from kvwatch.advice.advise import advise
from kvwatch.advice.followed import Following
from kvwatch.advice.inputs import AdviceInputs
from kvwatch.advice.limit import SteadyLimit
from kvwatch.advice.neighbours import NOBODY, Neighbours
from kvwatch.advice.steady import SteadyAdvice
from kvwatch.config.policy import KnownConfig
from kvwatch.model import Assessment, Change, Signals, State, Window


class RememberedAdvice:
    """Give it every assessment of one engine, and it says what to advise."""

    def __init__(self) -> None:
        self._following = Following()
        self._limit = SteadyLimit()
        self._steady = SteadyAdvice()

    def advised(
        self, assessment: Assessment, at: float, known: KnownConfig, started: float | None, neighbours: Neighbours = NOBODY
    ) -> tuple[Signals | None, tuple[Change, ...]]:
        """The advice to give beside *assessment*, and its signals with the number of sequences that goes with it.

        *at* is the scrape's time, *started* the Unix second the server's process started, *neighbours* serve the same model.
        Only where something binds is there a number to hold, and only once sizes are known.
        """
        verdict, signals, config = assessment.verdict, assessment.signals, assessment.config
        self._following.observe(signals, started, config, known, neighbours)
        followed = self._following.followed
        hold = verdict.state in (State.KV_BOUND, State.COMPUTE_BOUND) and signals is not None and _tells_sizes(signals.slow)
        given = (config, known, None if followed is None else followed.lever)
        if signals is not None:
            signals = self._limit.settle(at, AdviceInputs(verdict, signals, config, known, followed), given, hold=hold)
        changes = advise(verdict, signals, config, known, followed=followed, neighbours=neighbours)
        if hold and signals is not None:
            changes = self._steady.settle(at, verdict, changes, given, signals.sustainable_sequences)
        self._following.note(changes, signals)
        return signals, changes


def _tells_sizes(window: Window) -> bool:
    """As many have finished as run: the first to finish are the short ones."""
    return window.finished is not None and window.running is not None and window.finished >= max(1.0, window.running.mean)
