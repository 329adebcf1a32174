"""Faults on demand: what can go wrong with a vLLM server or its ``/metrics``, at a virtual time and for a while."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvwatch.config.values import parse_duration
from kvwatch.errors import UsageError
from kvwatch.simulator.simulation import Simulation


class HttpFault(StrEnum):
    """How ``/metrics`` fails; the engines go on."""

    HANG = "hang"
    """The connection is accepted and nothing is answered."""
    SLOW = "slow"
    """The answer comes, seconds late."""
    ERROR = "error"
    """Status 500."""
    TRUNCATED = "truncated"
    """The connection breaks in the middle of the body."""
    HTML = "html"
    """Status 200 with a web page, as a proxy in between may send."""


class Fault(StrEnum):
    """Everything ``--fault`` knows."""

    RESTART = "restart"
    """The server is killed and comes back with counters from zero; refused in between."""
    FREEZE = "freeze"
    """The engines stop stepping: gauges and counters stand still, ``/metrics`` still answers."""
    ABORT = "abort"
    """All clients hang up at once; gauges keep showing the moment before."""
    HANG = "hang"
    SLOW = "slow"
    ERROR = "error"
    TRUNCATED = "truncated"
    HTML = "html"


_DEFAULT_SECONDS: Final = 20.0
_SPEC: Final = re.compile(r"(?P<kind>[a-z]+)@(?P<start>[^+@]+)(?:\+(?P<seconds>[^+@]+))?")


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """A fault that begins `start` virtual seconds from now and lasts `seconds` of them."""

    kind: Fault
    start: float
    seconds: float = _DEFAULT_SECONDS


def parse_fault(spec: str) -> ScheduledFault:
    """``KIND@START[+DURATION]``, such as ``hang@30s+10s`` or ``restart@1m``. Raises `UsageError` naming what was written."""
    match = _SPEC.fullmatch(spec.strip())
    kinds = ", ".join(Fault)
    fault = UsageError(f"{spec!r} is no fault: write KIND@START or KIND@START+DURATION, KIND one of {kinds}")
    if match is None:
        raise fault
    try:
        seconds = parse_duration(match["seconds"]) if match["seconds"] else _DEFAULT_SECONDS
        return ScheduledFault(Fault(match["kind"]), parse_duration(match["start"]), seconds)
    except ValueError:
        raise fault from None


class FaultSwitch:
    """The fault ``/metrics`` has at the moment; the server looks at it for every request."""

    def __init__(self) -> None:
        self.current: HttpFault | None = None

    def set(self, fault: HttpFault | None) -> None:
        """Break ``/metrics`` in that way, or mend it."""
        self.current = fault


def schedule(fault: ScheduledFault, simulation: Simulation, switch: FaultSwitch) -> None:
    """Let a fault happen as the simulation's time goes by."""
    begin = simulation.now + fault.start
    end = begin + fault.seconds
    match fault.kind:
        case Fault.RESTART:
            simulation.at(begin, lambda: simulation.restart(downtime=fault.seconds))
        case Fault.FREEZE:
            simulation.at(begin, simulation.freeze)
            simulation.at(end, simulation.thaw)
        case Fault.ABORT:
            simulation.at(begin, simulation.abort_clients)
        case _:
            broken = HttpFault(fault.kind.value)
            simulation.at(begin, lambda: switch.set(broken))
            simulation.at(end, lambda: switch.set(None))
