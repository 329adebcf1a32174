"""The simulated vLLM over HTTP: ``/metrics``, ``/health`` and ``/version``, in real time or faster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from kvwatch.clock import Clock, SystemClock
from kvwatch.errors import UsageError
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.faults import FaultSwitch, HttpFault, ScheduledFault, schedule
from kvwatch.simulator.handler import Front, MetricsHandler

if TYPE_CHECKING:
    from types import TracebackType

    from kvwatch.simulator.config import ServerConfig
    from kvwatch.simulator.load import Load
    from kvwatch.simulator.simulation import Simulation

TICK_SECONDS: Final = 0.1
_YIELD_SECONDS: Final = 0.001
SLICE_SECONDS: Final = 10.0
"""Virtual seconds simulated at most while the lock is held, so that a scrape never waits long for a fast simulation."""


class SimulatorServer:
    """A simulation served on `host`:`port` (0: any free one), its time running `speed` times as fast as the clock's.

    Usable as a context manager; `close` ends the threads and frees the port. While the simulated server is down, connecting is refused.
    Raises `OSError` when the port cannot be had and `UsageError` for a speed that is not positive.
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        speed: float = 1.0,
        slow_seconds: float = 8.0,
        faults: tuple[ScheduledFault, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        if speed <= 0:
            raise UsageError(f"a speed must be positive: {speed}")
        self.simulation = simulation
        self.speed = speed
        self.slow_seconds = slow_seconds
        self.fault = FaultSwitch()
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._host = host
        self._front: Front | None = None
        self._front_thread: threading.Thread | None = None
        self._port = port
        for fault in faults:
            schedule(fault, simulation, self.fault)
        self._open_front()
        self._origin = self._clock.monotonic() - simulation.now / speed
        self._ticker = threading.Thread(target=self._tick, name="simulator", daemon=True)
        self._ticker.start()

    @property
    def port(self) -> int:
        """The port it listens on, the same across restarts."""
        return self._port

    @property
    def url(self) -> str:
        """Where the metrics are."""
        return f"http://{self._host}:{self._port}/metrics"

    @property
    def http_fault(self) -> HttpFault | None:
        """How ``/metrics`` fails at the moment; assign through `fault`."""
        return self.fault.current

    @property
    def version(self) -> str:
        """What ``/version`` says."""
        return self.simulation.config.version

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and simulating; calling it again changes nothing."""
        self._closing.set()
        self._ticker.join()
        self._close_front()

    def change(self, what: Callable[[Simulation], None]) -> None:
        """Do something to the simulation between two slices of its time."""
        with self._lock:
            what(self.simulation)
            self._follow()

    def set_load(self, load: Load) -> None:
        """Change what clients ask."""
        self.change(lambda simulation: simulation.set_load(load))

    def restart(self, config: ServerConfig | None = None, *, downtime: float = 20.0) -> None:
        """Restart the simulated server, with new flags if given; refused for `downtime` virtual seconds."""
        self.change(lambda simulation: simulation.restart(config, downtime=downtime))

    def freeze(self) -> None:
        """Stop the engines."""
        self.change(lambda simulation: simulation.freeze())

    def thaw(self) -> None:
        """Let frozen engines go on."""
        self.change(lambda simulation: simulation.thaw())

    def abort_clients(self) -> None:
        """All clients hang up."""
        self.change(lambda simulation: simulation.abort_clients())

    def metrics(self) -> str:
        """The text of ``/metrics`` at this moment, whatever the faults; empty while the server is down."""
        with self._lock:
            self._advance()
            return expose(self.simulation) if self.simulation.serving else ""

    def wait(self, seconds: float) -> bool:
        """Wait until closed, at most that long; True when closed."""
        return self._closing.wait(seconds)

    def catch_up(self) -> None:
        """Simulate up to the present, and listen or not as the simulated server is up or down; the ticker does it all the time."""
        reached = False
        while not reached and not self._closing.is_set():
            with self._lock:
                reached = self._advance()
                self._follow()
            if not reached:
                self._closing.wait(_YIELD_SECONDS)  # let a scrape have the lock

    def _advance(self) -> bool:
        """Simulate one slice towards the present; True when the present is reached."""
        present = (self._clock.monotonic() - self._origin) * self.speed
        self.simulation.advance(min(present, self.simulation.now + SLICE_SECONDS))
        return self.simulation.now >= present

    def _tick(self) -> None:
        while not self._closing.is_set():
            self.catch_up()
            self._closing.wait(TICK_SECONDS)

    def _follow(self) -> None:
        """Listen exactly while the simulated server is up."""
        if self.simulation.serving and self._front is None:
            with suppress(OSError):  # someone else holds the port for the moment: the next tick tries again
                self._open_front()
        elif not self.simulation.serving and self._front is not None:
            self._close_front()

    def _open_front(self) -> None:
        front = Front((self._host, self._port), partial(MetricsHandler, self))
        self._port = front.server_address[1]
        self._front = front
        self._front_thread = threading.Thread(
            target=front.serve_forever, kwargs={"poll_interval": 0.05}, name="simulator-http", daemon=True
        )
        self._front_thread.start()

    def _close_front(self) -> None:
        front, thread = self._front, self._front_thread
        self._front = self._front_thread = None
        if front is not None and thread is not None:
            front.shutdown()
            front.server_close()
            thread.join()
