"""A clock that moves when told, scrapes made of numbers, and a log to look into."""

from __future__ import annotations

from kvwatch.model import EngineConfig, EngineId, Scrape, Snapshot

ENGINE = EngineId("demo-8b", "0")


class FakeClock:
    """Both clocks, moved by the test."""

    def __init__(self, now=1000.0):
        self.now = now
        self.began_at_unix = 1_700_000_000.0 - now

    def monotonic(self):
        return self.now

    def unix(self):
        return self.began_at_unix + self.now


def snapshot(at, *, engine=ENGINE, **numbers):
    """One engine's numbers, a busy and healthy one's where nothing is said."""
    busy = {"running": 8.0, "waiting": 0.0, "kv_usage": 0.4, "preemptions": 0.0, "finished": at, "generation_tokens": 100 * at,
            "prompt_tokens": 50 * at, "steps": 20 * at, "step_tokens": 150 * at}  # fmt: skip
    config = EngineConfig(num_gpu_blocks=1001, block_size=16)
    return Snapshot(engine=engine, at=at, **{**busy, "config": config, **numbers})


def scrape(at, *snapshots, **facts):
    return Scrape(at=at, snapshots=snapshots or (snapshot(at),), sources={"running": "vllm:num_requests_running"}, **facts)


def storming(at, since):
    """A scrape of an engine that preempts three sequences a second and finishes one, since *since*."""
    seconds = at - since
    return scrape(
        at,
        snapshot(at, running=20.0, waiting=10.0, kv_usage=0.99, preemptions=3.0 * seconds, finished=since + seconds,
                 generation_tokens=100 * at),
    )  # fmt: skip
