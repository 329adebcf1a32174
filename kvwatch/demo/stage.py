"""The stage: the simulated server and the real daemon in one process, on one clock that runs faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from kvwatch.clock import Clock
from kvwatch.config.settings import PollSettings, Settings, TargetSettings
from kvwatch.config.web import WebSettings
from kvwatch.daemon.daemon import Daemon
from kvwatch.demo.acts import SERVER, Act
from kvwatch.demo.clock import FasterClock
from kvwatch.errors import ConfigError
from kvwatch.model import Scrape, TargetView, recommended_max_num_seqs
from kvwatch.poller.fetch import fetch
from kvwatch.poller.label_memory import LabelMemory
from kvwatch.poller.vllm import parse_scrape
from kvwatch.simulator.server import SimulatorServer
from kvwatch.simulator.simulation import Simulation

POLL_SECONDS: Final = 5.0
"""Virtual, as the daemon's default is."""
_DEADLINE: Final = 3.0
"""Real seconds: the simulated server does not answer faster because its time runs faster."""
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """What an audience sees: which act, how much of it is over (0..1), and the last word of kvwatch."""

    act: Act
    progress: float
    view: TargetView


class Stage:
    """Use as a context manager. *speed* is in virtual seconds per real second.

    Raises `ConfigError` when the address of *web* cannot be bound.
    """

    def __init__(self, clock: Clock, speed: float, web: WebSettings, seed: int = 1) -> None:
        self._memory = LabelMemory()
        self._real = clock
        self._clock = FasterClock(clock, speed)
        self._speed = speed
        self._web = web
        self._seed = seed
        self._open = ExitStack()
        self._advised: int | None = None

    def __enter__(self) -> Self:
        simulation = Simulation(SERVER, seed=self._seed, start_unix=self._clock.unix())
        self.server = self._open.enter_context(SimulatorServer(simulation, speed=self._speed, clock=self._real))
        settings = Settings(
            targets=[TargetSettings(url=self.server.url, name="simulated-vllm")], poll=PollSettings(interval=POLL_SECONDS), web=self._web
        )
        self.daemon = Daemon(settings, self._clock, self._read, pace=self._speed)
        self._open.callback(self.daemon.stop)
        try:
            self.daemon.start()
        except ConfigError:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def url(self) -> str:
        """The status page."""
        return self.daemon.url

    def play(self, acts: Sequence[Act]) -> Iterator[Frame]:
        """The acts one after the other; yields as often as it is asked, and the caller waits between two moments."""
        for act in acts:
            self.server.change(partial(self._begin, act))
            began = self._clock.monotonic()
            while (elapsed := self._clock.monotonic() - began) < act.seconds:
                yield self._moment(act, elapsed / act.seconds)
            yield self._moment(act, 1.0)

    def _begin(self, act: Act, simulation: Simulation) -> None:
        act.begin(simulation, self._advised)

    def _moment(self, act: Act, progress: float) -> Frame:
        view = self.daemon.views()[0]
        for assessment in view.assessments:
            self._advised = recommended_max_num_seqs(assessment.advice) or self._advised
        return Frame(act, progress, view)

    def _read(self, target: TargetSettings) -> Scrape:
        body = fetch(target.url, deadline=_DEADLINE, max_bytes=_MAX_BYTES, clock=self._real)
        return parse_scrape(body, self._clock.monotonic(), memory=self._memory)
