"""Who asks the simulated server, and when: open loops, closed loops, arrivals at given times."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from kvwatch.simulator.config import StepProfile
from kvwatch.simulator.load import IDLE, Arrival, Arrivals, ClosedLoop, Load, OpenLoop


class AskedServer(Protocol):
    """What clients need of the simulation; times are virtual seconds."""

    now: float
    profile: StepProfile
    life: int

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        ...

    def receive(self, prompt: int, output: int, number: int, shared_prefix: int = 0) -> None:
        """A request of load *number*; lengths in tokens."""
        ...


class Clients:
    """The clients of one server; `load` is what they ask now, *random* what they differ by."""

    def __init__(self, server: AskedServer, random: Random) -> None:
        self.load: Load = IDLE
        self._server = server
        self._random = random
        self._number = 0
        """Of the load: clients of an earlier one send no more."""

    def set_load(self, load: Load) -> None:
        """Ask for something else from now on."""
        self._number += 1
        self.load = load
        match load:
            case ClosedLoop():
                for _ in range(load.concurrency):
                    self._send_later(load)
            case OpenLoop():
                if load.rate > 0:
                    self._next_burst(load, self._number)
            case Arrivals():
                for row in load.rows:
                    self._arrive_at(row, self._number)

    def answered(self, number: int) -> None:
        """A client of load *number* has its answer; in a closed loop it goes on."""
        if number == self._number and isinstance(self.load, ClosedLoop):
            self._send_later(self.load)

    def _send_later(self, load: ClosedLoop) -> None:
        """A closed loop's client sends its next request after the turnaround."""
        server, number = self._server, self._number
        prompt, output = load.prompt.draw(self._random), load.output.draw(self._random)
        turnaround = server.profile.turnaround
        delay = self._random.expovariate(1.0 / turnaround) if turnaround > 0 else 0.0
        life = server.life

        def arrive() -> None:
            if life == server.life:
                server.receive(prompt, output, number, load.shared_prefix)

        server.at(server.now + delay, arrive)

    def _next_burst(self, load: OpenLoop, number: int) -> None:
        def arrive() -> None:
            if number != self._number:
                return
            for _ in range(load.burst):
                self._server.receive(load.prompt.draw(self._random), load.output.draw(self._random), number, load.shared_prefix)
            self._next_burst(load, number)

        self._server.at(self._server.now + self._random.expovariate(load.rate), arrive)

    def _arrive_at(self, row: Arrival, number: int) -> None:
        def arrive() -> None:
            if number == self._number:
                self._server.receive(row.prompt, row.output, number)

        self._server.at(self._server.now + row.at, arrive)
