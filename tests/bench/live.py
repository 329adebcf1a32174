"""How long kvwatch takes to name what holds a real vLLM back, and to drop it when it is over, polled every second and every 5 s.

    python tests/bench/live.py --vllm VENV/bin/vllm --model MODEL --results DIR [KIND ...]

Each kind has a server of its own, polled every second; one kvwatch sees every page, another every fifth. A kind is true from the first
page whose own numbers say so (for the freeze: from SIGSTOP), and over when its clients have left (for the freeze: at SIGCONT). Printed are
the seconds from then until kvwatch names it and until it no longer does, and everything it called the engine in between. The pages are
kept in DIR/KIND.jsonl.gz.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from poll_cost import group_of
from regret import CLOCK, Client, Load, metrics, say, serving

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.incident.recording import Writer
from kvwatch.model import Cause, Snapshot, State, Verdict
from kvwatch.poller.vllm import parse_scrape

EVERY = (1, 5)
"""A kvwatch each that sees every page, and every fifth; pages are a second apart."""
SETTLES, LASTS, AFTER = 20.0, 60.0, 45.0
"""Seconds: before the load, of the thing being true, and after it is over."""
LONGEST_WAIT = 240.0
"""Seconds within which a kind has to become true on the page."""
MOST_NAMED, MOST_LEFT = 20.0, 15.0
"""The bars, seconds."""


def slow_grammar(number):
    """A JSON schema whose compilation takes seconds: 30 strings of a pattern with 40 long alternatives."""
    words = "|".join(f"alternative{number}x{word}with{'abcdefghij' * 3}" for word in range(40))
    properties = {f"field{number}_{one}": {"type": "string", "pattern": f"^({words}){{1,9}}$"} for one in range(30)}
    return {"structured_outputs": {"json": {"type": "object", "properties": properties, "required": sorted(properties)}}}


@dataclass(frozen=True)
class Kind:
    """A load, what its page says once the thing is true, and what kvwatch is to call it."""

    load: Load
    true: Callable[[Snapshot], bool]
    named: Callable[[Verdict], bool]
    freezes: bool = False
    further: tuple[dict[str, object], ...] = field(default=())
    """Further fields of a request, one client each."""


def causes(*wanted):
    return lambda verdict: verdict.cause in wanted


def queues(snapshot):
    return bool(snapshot.waiting) and bool(snapshot.running)


def deferred(snapshot):
    return (snapshot.waiting_deferred or snapshot.waiting or 0.0) > 0 and not snapshot.running


KINDS = {
    "few long": Kind(Load(160, (64,), (1000, 0), (400, 0), clients=4), lambda one: (one.preemptions or 0) >= 1, causes(Cause.PREEMPTING)),
    "storm": Kind(Load(160, (64,), (300, 0), (200, 0), clients=32), lambda one: (one.preemptions or 0) >= 1, causes(Cause.PREEMPTING)),
    "slots": Kind(Load(1000, (8,), (300, 0), (200, 0), clients=32), queues, causes(Cause.SEQUENCE_SLOTS)),
    "freeze": Kind(Load(1000, (16,), (300, 0), (200, 0), clients=8), lambda one: bool(one.running), causes(Cause.STALLED), freezes=True),
    "deferred": Kind(
        Load(1000, (64,), (100, 0), (100, 0), clients=24),
        deferred,
        causes(Cause.DEFERRED, Cause.STALLED),
        further=tuple(slow_grammar(number) for number in range(24)),
    ),
    "healthy": Kind(
        Load(1000, (64,), (200, 0), (100, 0), clients=4), lambda one: bool(one.running), lambda v: v.state is not State.HEALTHY
    ),
}
"""``healthy`` is the control: it is never to be called anything else."""


@dataclass
class Watched:
    """A server's pages and what the two kvwatches said of them."""

    port: int
    pages: list[tuple[float, bytes]] = field(default_factory=list)
    snapshots: list[tuple[float, Snapshot]] = field(default_factory=list)
    said: dict[int, list[tuple[float, Verdict]]] = field(default_factory=lambda: {every: [] for every in EVERY})

    async def watch(self):
        """Poll every second until cancelled; times are those of the monotonic clock."""
        judges = {every: judge_for(Settings(), interval=float(every)) for every in EVERY}
        while True:
            began = CLOCK.monotonic()
            page = await asyncio.to_thread(metrics, self.port)
            at, unix = CLOCK.monotonic(), CLOCK.unix()
            scrape = parse_scrape(page, at, unix)
            self.snapshots.append((at, scrape.snapshots[0]))
            for every, judge in judges.items():
                if len(self.pages) % every == 0:
                    self.said[every].append((at, judge.scraped(scrape).assessments[0].verdict))
            self.pages.append((unix, page))
            await asyncio.sleep(max(0.0, began + 1.0 - CLOCK.monotonic()))

    async def until_true(self, true):
        """The second of the first page from now on of which *true* holds."""
        seen, until = len(self.snapshots), CLOCK.monotonic() + LONGEST_WAIT
        while CLOCK.monotonic() < until:
            for at, snapshot in self.snapshots[seen:]:
                if true(snapshot):
                    return at
            seen = len(self.snapshots)
            await asyncio.sleep(0.1)
        sys.exit(f"nothing came true within {LONGEST_WAIT:.0f} s")


def signal_engine(group, number):
    """SIGSTOP or SIGCONT to the engine's processes, not to the API server in front."""
    for stat in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(stat.parent.name)
        try:
            name = stat.read_bytes()
            if os.getpgid(pid) == group and (b"EngineCore" in name or b"Worker" in name):
                os.kill(pid, number)
        except OSError:  # it has ended
            continue


async def stopped(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def played(kind, port):
    """One kind on one server: what was seen, and the seconds at which it was true and over."""
    watched = Watched(port)
    watching = asyncio.create_task(watched.watch())
    await asyncio.sleep(SETTLES)
    further = kind.further or ({},) * kind.load.clients
    clients = [asyncio.create_task(Client(port, kind.load, seed, more).always()) for seed, more in enumerate(further)]
    true = await watched.until_true(kind.true)
    if kind.freezes:
        await asyncio.sleep(SETTLES)
        group = group_of(port)
        signal_engine(group, signal.SIGSTOP)
        true = CLOCK.monotonic()
        try:
            await asyncio.sleep(LASTS)
        finally:
            signal_engine(group, signal.SIGCONT)
        over = CLOCK.monotonic()
    else:
        await asyncio.sleep(LASTS)
        await stopped(clients)
        over = CLOCK.monotonic() if not kind.further else await watched.until_true(lambda one: not kind.true(one))
    await asyncio.sleep(AFTER)
    await stopped([*clients, watching])
    return watched, true, over


def row(name, every, named, said, span):
    """A line of the table: how long until it was named and until it was left, and all that was said while it was true and after."""
    true, over = span
    first = next((at for at, verdict in said if true <= at < over and named(verdict)), None)
    last = max((at for at, verdict in said if at >= over and named(verdict)), default=over)
    left = next((at for at, _ in said if at > last), None)
    words = []
    for at, verdict in said:
        if at >= true and (not words or words[-1].split(" ")[1] != verdict.cause):
            words.append(f"{at - true:.0f}s {verdict.cause}")
    took = None if first is None else first - true
    leaves = None if left is None else left - over
    shown = ["never" if value is None else f"{value:.1f} s" for value in (took, leaves)]
    return f"| {name} | {every} s | {shown[0]} | {shown[1]} | {over - true:.0f} s | {', '.join(words)} |"


async def main(args):
    """Play each kind, keep its pages, print the table."""
    say(f"bars: named within {MOST_NAMED:.0f} s, left within {MOST_LEFT:.0f} s; healthy is never to be named")
    say("| kind | polled every | named after | left after | it lasted | said |\n|---|---|---|---|---|---|")
    for name in args.kinds or KINDS:
        kind = KINDS[name]
        async with serving(args, kind.load.blocks, kind.load.rungs[0]) as port:
            watched, true, over = await played(kind, port)
        path = Path(args.results) / f"{name.replace(' ', '_')}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with Writer(path, "live") as writer:
            for unix, page in watched.pages:
                writer.body(unix, page.decode())
        for every in EVERY:
            say(row(name, every, kind.named, watched.said[every], (true, over)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--results", required=True)
    parser.add_argument("--log", default=os.devnull, help="vLLM's own output goes there")
    asyncio.run(main(parser.parse_args()))
