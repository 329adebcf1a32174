"""Whatever comes, in whatever order: the classifier never raises and always says a cause that belongs to its state."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import fields

import pytest

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.model import CAUSES, HISTOGRAMS, EngineConfig, EngineId, FailureReason, Histogram, Scrape, ScrapeFailure, Snapshot

GAUGES = {"running": 300, "waiting": 300, "waiting_deferred": 300}
OTHERS = ("engine", "at", "kv_usage", "asleep", "created", "config")
COUNTERS = [field.name for field in fields(Snapshot) if field.name not in (*HISTOGRAMS, *GAUGES, *OTHERS)]
SCRAPES = 120


class Chaos:
    """Engines that come and go, counters that vanish, reset and stand still, gauges anywhere in their range."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - noise, not a secret
        self.at = 0.0
        self.absent = self.chance.choice((0.0, 0.02, 0.3, 0.9))
        self.still = self.chance.choice((0.0, 0.5, 0.98))
        self.resets = self.chance.choice((0.0, 0.01, 0.2))
        self.engines = [EngineId("demo-8b", str(rank)) for rank in range(self.chance.choice((1, 1, 2, 3)))]
        self.counts: dict[tuple[EngineId, str], float] = {}
        self.start = 1000.0
        self.bounds: tuple[float, ...] = (0.1, 1.0)

    def happens(self, probability: float) -> bool:
        return self.chance.random() < probability

    def some(self, low: float, high: float) -> float:
        """Often an edge."""
        return self.chance.choice((low, high, self.chance.uniform(low, high)))

    def event(self) -> Scrape | ScrapeFailure:
        self.at += self.chance.choice((0.0, 0.001, 1.0, 5.0, 5.0, 5.0, 15.0, 21.0, 300.0))
        if self.happens(0.05):
            return ScrapeFailure(self.at, self.chance.choice(list(FailureReason)), "as told")
        if self.happens(self.resets):
            self.start += 100.0
        present = [engine for engine in self.engines if not self.happens(self.absent / 3)]
        return Scrape(
            at=self.at,
            snapshots=tuple(self.snapshot(engine) for engine in present),
            process_start_time=self.maybe(self.start),
            process_cpu_seconds=self.maybe(self.count(self.engines[0], "cpu")),
            http_requests=self.maybe(self.count(self.engines[0], "http")),
            gpu_utilization=self.maybe(self.some(0.0, 1.0)),
        )

    def maybe(self, value):
        return None if self.happens(self.absent) else value

    def count(self, engine: EngineId, name: str) -> float:
        now = self.counts.get((engine, name), 0.0)
        if self.happens(self.resets):
            now = 0.0
        if not self.happens(self.still):
            now += self.some(0, 10 ** self.chance.randrange(7))
        self.counts[engine, name] = now
        return now

    def histogram(self, engine: EngineId, name: str) -> Histogram:
        if self.happens(0.01):
            self.bounds = self.chance.choice(((0.1, 1.0), (0.1, 1.0, 10.0), ()))
        total = self.count(engine, name)
        counts = sorted(self.chance.uniform(0, total) for _ in self.bounds)
        return Histogram(self.bounds, array("d", [*counts, total]), self.maybe(self.some(-1e6, 1e6)))

    def snapshot(self, engine: EngineId) -> Snapshot:
        values: dict[str, object] = {name: self.count(engine, name) for name in COUNTERS}
        values |= {name: float(round(self.some(0, top))) for name, top in GAUGES.items()}
        values |= {name: self.histogram(engine, name) for name in HISTOGRAMS}
        values |= {"kv_usage": self.some(0.0, 1.0), "asleep": self.happens(0.02), "created": self.start}
        config = EngineConfig(
            kv_cache_size_tokens=self.maybe(self.chance.choice((1, 5120, 10**7))),
            num_gpu_blocks=self.maybe(self.chance.choice((1, 2, 160))),
            block_size=self.maybe(self.chance.choice((1, 32))),
            max_model_len=self.maybe(self.chance.choice((1, 4096))),
            cache_dtype=self.maybe(self.chance.choice(("auto", "fp8", "odd"))),
            gpu_memory_utilization=self.maybe(self.some(0.01, 1.0)),
            enable_prefix_caching=self.maybe(self.happens(0.5)),
        )
        return Snapshot(engine, self.at, config=config, **{name: self.maybe(value) for name, value in values.items()})


def numbers_in(value: object) -> list[float]:
    """Every number in a tree of dataclasses."""
    if isinstance(value, float):
        return [value]
    if hasattr(value, "__dataclass_fields__"):
        return [number for name in value.__dataclass_fields__ for number in numbers_in(getattr(value, name))]
    return []


SHARES = ("kv_usage", "at_ceiling_share", "sequence_share", "prefill_token_share", "recompute_ratio", "prefix_hit_ratio")


@pytest.mark.parametrize("interval", [1.0, 5.0, 15.0])
@pytest.mark.parametrize("seed", range(40))
def test_every_sequence_of_scrapes_gives_a_verdict(seed, interval):
    chaos, judge = Chaos(seed), judge_for(Settings(), interval=interval)
    for _ in range(SCRAPES):
        event = chaos.event()
        judgement = judge.failed(event) if isinstance(event, ScrapeFailure) else judge.scraped(event)
        assert judgement.assessments or not getattr(event, "snapshots", ())
        for assessment in judgement.assessments:
            verdict, signals = assessment.verdict, assessment.signals
            assert verdict.cause in CAUSES[verdict.state]
            assert verdict.evidence
            assert all("\n" not in line and "nan" not in line for line in verdict.evidence)
            assert verdict.since <= chaos.at
            assert all(math.isfinite(number) for number in numbers_in(signals))
            for window in (signals.recent, signals.fast, signals.slow) if signals is not None else ():
                assert window.preemption_ratio is None or 0 <= window.preemption_ratio <= 1
            for name in SHARES if signals is not None else ():
                share = getattr(signals, name)
                assert share is None or 0 <= share <= 1, name
            assert sum(assessment.state_seconds.values()) <= chaos.at + 1e-6
