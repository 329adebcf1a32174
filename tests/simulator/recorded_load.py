"""The load a recording was made under, as its header says, for a simulated server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvwatch.simulator.load import IDLE, ClosedLoop, Load, OpenLoop, parse_lengths
from kvwatch.simulator.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Phase:
    """A load for some seconds."""

    seconds: float
    load: Load


def parse_phase(entry: Mapping[str, object]) -> Phase:
    """A phase as a recording's header writes it: ``{"s": 90, "rate": 5, "prompt": [...], "output": [...]}``."""
    seconds = float(str(entry["s"]))
    if "prompt" not in entry:
        return Phase(seconds, IDLE)
    prompt, output = parse_lengths(entry["prompt"]), parse_lengths(entry["output"])
    if "concurrency" in entry:
        return Phase(seconds, ClosedLoop(int(str(entry["concurrency"])), prompt, output))
    return Phase(seconds, OpenLoop(float(str(entry["rate"])), prompt, output, burst=int(str(entry.get("burst", 1)))))


def play(simulation: Simulation, phases: Sequence[Phase]) -> float:
    """Change the load as the phases say, from now on; returns the virtual time at which the last one ends."""
    begin = simulation.now
    for phase in phases:
        simulation.at(begin, lambda load=phase.load: simulation.set_load(load))  # type: ignore[misc]
        begin += phase.seconds
    return begin
