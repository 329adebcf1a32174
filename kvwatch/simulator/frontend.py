"""What stands in front of the engines: the web framework's counters, and the API server whose one event loop hands out every token."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvwatch.simulator.counters import HTTP_COARSE_BOUNDS, HTTP_FINE_BOUNDS, Distribution


@dataclass(slots=True)
class HttpCounters:
    """What the web framework in front of the engines counts; responses that ended, by status class."""

    responses: dict[str, int] = field(default_factory=dict)
    request_bytes: int = 0
    fine: Distribution = field(default_factory=lambda: Distribution(HTTP_FINE_BOUNDS))
    coarse: Distribution = field(default_factory=lambda: Distribution(HTTP_COARSE_BOUNDS))

    def record(self, status: str, seconds: float, prompt: int) -> None:
        """A response ended; a prompt is taken for one byte a token plus the JSON around it."""
        self.responses[status] = self.responses.get(status, 0) + 1
        self.request_bytes += prompt + 80
        self.fine.observe(seconds)
        self.coarse.observe(seconds)


@dataclass(slots=True)
class ApiServer:
    """One event loop: it streams the tokens of a step while the engine computes the next one, and falls behind when it needs longer."""

    spent: float = 0.0
    """Processor seconds for all tokens it was given, those still to be handed out included."""
    _free_at: float = 0.0

    def stream(self, seconds: float, now: float) -> float:
        """It is given tokens that take *seconds*; returns the virtual time at which it comes to them."""
        begins = max(now, self._free_at)
        self._free_at = begins + seconds
        self.spent += seconds
        return begins

    def busy_seconds(self, now: float) -> float:
        """Processor seconds it has used by now."""
        return self.spent - max(0.0, self._free_at - now)
