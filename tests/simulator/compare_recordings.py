"""The simulator against recordings of a real vLLM: the same flags, the same load, the same moments looked at.

Run ``python tests/simulator/compare_recordings.py [RECORDINGS_DIR]`` to print the table in the simulator's README.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from argparse import ArgumentParser
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from recorded_load import Phase, parse_phase, play

from kvwatch.simulator.__main__ import add_server_flags, server_config
from kvwatch.simulator.config import CPU_25M
from kvwatch.simulator.load import OpenLoop
from kvwatch.simulator.simulation import Simulation

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
SEEDS = (1, 2, 3, 4, 5)
SETTLE = 15.0
"""Seconds of a phase that are not compared: queues and cache fill up."""
RATIO_BAR = 0.25
USAGE_BAR = 0.08
FLOORS = {"preemption_ratio": 0.02}
"""Differences that are none: two preemptions in a hundred leaving requests."""


@dataclass(frozen=True)
class Case:
    """A recording and the part of it that is compared: the phase with that index, after `SETTLE` seconds."""

    name: str
    phase: int
    recorded: tuple[float, float] | None = None
    """Seconds of the recording that are compared, where the header's phases do not tell: a restart takes as long as it takes."""
    overload: float = 1.0
    """The recorded rate of arrivals is multiplied by this, where the recorded machine was that much slower than the profile."""
    waiting: bool = True
    """False where the queue of an open loop only grows, so that its mean says when one looked."""


CASES = (
    Case("kv_storm", 1, waiting=False),
    # 627 generated tokens/s in this recording, 897 with the profile: the same arrivals are no overload for the faster machine.
    Case("kv_storm", 1, overload=1.43, waiting=False),
    Case("storm_mfu", 1),
    Case("storm_mfu_apc", 1),
    Case("restart_under_storm", 0),
    Case("restart_under_storm", 3, recorded=(90.0, 127.0)),
    Case("dp2_one_starved", 1),
    Case("kv_admission", 1),
    Case("kv_admission_rag", 1),
    Case("kv_full_but_fine", 0),
    Case("kv_high_fine", 0),
    Case("seq_limit", 1, waiting=False),
    Case("compute", 1, waiting=False),
    Case("prefill_budget", 1, waiting=False),
    Case("healthy_steady", 0),
    Case("stalled", 0),
)


@dataclass(frozen=True)
class Sample:
    """One scrape of one engine."""

    running: float
    waiting: float
    usage: float
    preemptions: float
    finished: float
    step_tokens: float
    steps: float
    generated: float


@dataclass(frozen=True)
class Steady:
    """Means over the compared part; over several engines the mean of theirs."""

    running: float
    waiting: float
    usage: float
    preemption_ratio: float
    tokens_per_step: float
    generated_per_second: float


FIELDS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "usage",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:request_success_total": "finished",
    "vllm:iteration_tokens_total_sum": "step_tokens",
    "vllm:iteration_tokens_total_count": "steps",
    "vllm:generation_tokens_total": "generated",
}
LINE = re.compile(r'(vllm:[a-z_0-9]+)\{engine="(\d+)"[^}]*\} (\S+)')


@cache
def read_body(body: str) -> dict[str, Sample]:
    engines: dict[str, dict[str, float]] = {}
    for name, engine, value in LINE.findall(body):
        if name in FIELDS:
            sums = engines.setdefault(engine, dict.fromkeys(FIELDS.values(), 0.0))
            sums[FIELDS[name]] += float(value)
    return {engine: Sample(**sums) for engine, sums in engines.items()}


def summarise(scrapes: list[tuple[float, dict[str, Sample]]]) -> Steady:
    per_engine = []
    for engine in sorted({engine for _, samples in scrapes for engine in samples}):
        points = [(at, samples[engine]) for at, samples in scrapes if engine in samples]
        (began, first), (ended, last) = points[0], points[-1]
        preempted, finished = last.preemptions - first.preemptions, last.finished - first.finished
        per_engine.append(
            Steady(
                running=mean(sample.running for _, sample in points),
                waiting=mean(sample.waiting for _, sample in points),
                usage=mean(sample.usage for _, sample in points),
                preemption_ratio=preempted / (preempted + finished),
                tokens_per_step=(last.step_tokens - first.step_tokens) / (last.steps - first.steps),
                generated_per_second=(last.generated - first.generated) / (ended - began),
            )
        )
    return average(per_engine)


def average(values: list[Steady]) -> Steady:
    return Steady(*(mean(getattr(value, field) for value in values) for field in Steady.__dataclass_fields__))


@cache
def read_recording(path: Path) -> tuple[dict[str, Any], list[tuple[float, str]]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        header = json.loads(file.readline())
        entries = [json.loads(line) for line in file]
    return header, [(entry["t"], entry["body"]) for entry in entries if "body" in entry]


def window(header: dict[str, object], phase: int) -> tuple[float, float]:
    begin = sum(entry["s"] for entry in header["load"][:phase])
    return begin + SETTLE, begin + header["load"][phase]["s"]


def real(case: Case, directory: Path) -> Steady:
    header, scrapes = read_recording(directory / f"{case.name}.jsonl.xz")
    begin, end = case.recorded or window(header, case.phase)
    origin = scrapes[0][0]
    return summarise([(at - origin, read_body(body)) for at, body in scrapes if begin <= at - origin < end])


def arrival_rate(case: Case, directory: Path) -> float:
    """Requests a second that really came in the compared part: a Poisson process seldom keeps exactly to the header's rate."""
    header, scrapes = read_recording(directory / f"{case.name}.jsonl.xz")
    begin, end = window(header, case.phase)
    points = [(at, read_body(body)) for at, body in scrapes if begin <= at - scrapes[0][0] < end]
    arrived = [sum(sample.finished + sample.running + sample.waiting for sample in engines.values()) for _, engines in points]
    return (arrived[-1] - arrived[0]) / (points[-1][0] - points[0][0])


def phases(header: dict[str, Any], case: Case, directory: Path) -> list[Phase]:
    """The recorded load; phases in which the recorded server was killed are without load here, as they are there."""
    played = [parse_phase(entry if "action" not in entry else {"s": entry["s"]}) for entry in header["load"]]
    compared = played[case.phase]
    if isinstance(compared.load, OpenLoop):
        rate = arrival_rate(case, directory) * case.overload
        played[case.phase] = replace(compared, load=replace(compared.load, rate=rate))
    return played


def simulated(case: Case, directory: Path, seed: int) -> Steady:
    """The same server, the same load, looked at once a second in the same seconds."""
    header, _ = read_recording(directory / f"{case.name}.jsonl.xz")
    parser = ArgumentParser()
    add_server_flags(parser)
    simulation = Simulation(server_config(parser.parse_args(header["flags"])), profile=CPU_25M, seed=seed)
    play(simulation, phases(header, case, directory))
    begin, end = window(header, case.phase)
    scrapes = []
    at = begin
    while at < end:
        simulation.advance(at)
        scrapes.append((at, {str(index): sample(engine.counters) for index, engine in enumerate(simulation.engines)}))
        at += 1.0
    return summarise(scrapes)


def sample(counters) -> Sample:
    return Sample(
        running=counters.gauges.running,
        waiting=counters.gauges.waiting,
        usage=counters.gauges.usage,
        preemptions=counters.preemptions,
        finished=counters.finished,
        step_tokens=counters.step_tokens.sum,
        steps=counters.step_tokens.count,
        generated=counters.generation_tokens,
    )


def compare(case: Case, directory: Path = RECORDINGS) -> tuple[Steady, Steady]:
    """What the recording shows and what the simulator gives, the latter over all seeds."""
    return real(case, directory), average([simulated(case, directory, seed) for seed in SEEDS])


def misses(case: Case, recorded: Steady, model: Steady) -> list[str]:
    """The compared numbers outside the bars: ±25 % of the recorded value, for KV usage ±0.08."""
    names = ["running", "tokens_per_step"]
    if recorded.preemption_ratio or model.preemption_ratio:
        names.append("preemption_ratio")
    if case.waiting and max(recorded.waiting, model.waiting) >= 0.5:
        names.append("waiting")
    far = [
        name
        for name in names
        if abs(getattr(model, name) - getattr(recorded, name)) > max(RATIO_BAR * getattr(recorded, name), FLOORS.get(name, 0.0))
    ]
    return far + (["usage"] if abs(model.usage - recorded.usage) > USAGE_BAR else [])


def row(case: Case, directory: Path) -> str:
    """A line of the README's table: recorded / simulated."""
    recorded, model = compare(case, directory)

    def both(field: str, digits: int) -> str:
        return f"{getattr(recorded, field):.{digits}f} / {getattr(model, field):.{digits}f}"

    scaled = f", arrivals x {case.overload}" if case.overload != 1 else ""
    cells = [
        f"`{case.name}`, phase {case.phase + 1}{scaled}",
        both("running", 2),
        both("waiting", 1) if case.waiting else f"({both('waiting', 0)})",
        both("usage", 3),
        both("preemption_ratio", 3),
        both("tokens_per_step", 1),
        both("generated_per_second", 0),
        ", ".join(misses(case, recorded, model)) or "none",
    ]
    return "| " + " | ".join(cells) + " |"


def main(argv: list[str]) -> None:
    directory = Path(argv[1]) if len(argv) > 1 else RECORDINGS
    head = ("recording", "running", "waiting", "KV usage", "preemption ratio", "tokens per step", "generated tokens/s", "outside the bars")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *(row(case, directory) for case in CASES)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv)
