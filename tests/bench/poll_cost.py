"""What being polled costs a real vLLM: the same load with a poll every second, every 5 s, and none, in turns.

    python tests/bench/poll_cost.py --vllm VENV/bin/vllm --model MODEL [--rounds 8] [--seconds 12]

Each round has every condition once, in an order of its own; what is compared are the turns of one round. First, without load, the
processor time of vLLM's processes is read over polls in quick succession: what one poll costs, without the noise of a load.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
from pathlib import Path
from typing import Final

from regret import CLOCK, Client, Load, counted, metrics, percentile, say, serving

from kvwatch.poller.fetch import fetch

LOAD: Final = Load(1000, (16,), (200, 0), (150, 0), clients=8)
CONDITIONS: Final = {"none": None, "5 s": 5.0, "1 s": 1.0}
IDLE_POLLS: Final = 200
WARM_SECONDS: Final = 20.0
TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(group):
    """Processor time so far of every process of the group."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def group_of(port):
    """The process group of the server: the one whose command line has the port."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and str(port).encode() in words:
            return os.getpgid(int(line.parent.name))
    raise LookupError(port)


def poll(port):
    fetch(f"http://127.0.0.1:{port}/metrics", deadline=4.0, max_bytes=8_000_000, clock=CLOCK)


async def polls(port, interval):
    """Poll until cancelled, as kvwatch does."""
    while interval is not None:
        began = CLOCK.monotonic()
        await asyncio.to_thread(poll, port)
        await asyncio.sleep(max(0.0, began + interval - CLOCK.monotonic()))


async def idle_cost(port, group):
    """Milliseconds of vLLM's processor time for one poll, without load."""
    costs = []
    for _ in range(5):
        began, at = cpu_seconds(group), CLOCK.monotonic()
        await asyncio.sleep(4.0)
        idle = (cpu_seconds(group) - began) / (CLOCK.monotonic() - at)
        began, at = cpu_seconds(group), CLOCK.monotonic()
        for _ in range(IDLE_POLLS):
            await asyncio.to_thread(poll, port)
        costs.append(1000 * (cpu_seconds(group) - began - idle * (CLOCK.monotonic() - at)) / IDLE_POLLS)
    return statistics.median(costs)


async def turn(port, client, interval, seconds):
    """Tokens a second and the 99th percentile between two tokens (s) under one condition."""
    polling = asyncio.create_task(polls(port, interval))
    await asyncio.sleep(1.0)
    start, before = CLOCK.monotonic(), counted(await asyncio.to_thread(metrics, port))
    await asyncio.sleep(seconds)
    after, end = counted(await asyncio.to_thread(metrics, port)), CLOCK.monotonic()
    polling.cancel()
    gaps = [gap for at, gap in client.gaps if start <= at <= end]
    return (after["generation_tokens"] - before["generation_tokens"]) / (end - start), percentile(gaps, 99)


async def main(args):
    """Print the table."""
    rng = random.Random(1)  # noqa: S311 - the order of turns
    async with serving(args, LOAD.blocks, LOAD.rungs[0]) as port:
        group = group_of(port)
        lines, cost = len(metrics(port).splitlines()), await idle_cost(port, group)
        say(f"one poll of {lines} lines: {cost:.1f} ms of vLLM's processor time, without load")
        client = Client(port, LOAD, seed=1)
        tasks = [asyncio.create_task(client.always()) for _ in range(LOAD.clients)]
        await asyncio.sleep(WARM_SECONDS)
        found = {name: [] for name in CONDITIONS}
        for number in range(args.rounds):
            for name in rng.sample(list(CONDITIONS), len(CONDITIONS)):
                found[name].append(await turn(port, client, CONDITIONS[name], args.seconds))
            rates = {name: round(turns[-1][0]) for name, turns in found.items()}
            say(f"round {number + 1}, load of the machine {os.getloadavg()[0]:.1f}, tokens/s: {rates}")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    say("| polled | tokens/s, median | against none in the same round: median (least, most) | between two tokens, p99 |\n|---|---|---|---|")
    for name, turns in found.items():
        ratios = [mine[0] / theirs[0] for mine, theirs in zip(turns, found["none"], strict=True)]
        rate, gap = statistics.median(rate for rate, _ in turns), statistics.median(gap for _, gap in turns)
        say(f"| {name} | {rate:.0f} | {statistics.median(ratios):.3f} ({min(ratios):.3f}, {max(ratios):.3f}) | {1000 * gap:.0f} ms |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=12.0)
    asyncio.run(main(parser.parse_args()))
