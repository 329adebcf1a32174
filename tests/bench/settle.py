"""Whether advice holds still once it was followed: a storm on a real vLLM, a restart with the advised limit, ten minutes of the same load.

    python tests/bench/settle.py --vllm VENV/bin/vllm --model MODEL [--minutes 10] [LOAD]

One kvwatch sees it all. It prints the changes of cause and of the first advice after the restart, from when it first calls the advice
followed, and what was said. ``LOAD`` is one of `regret.LOADS`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from itertools import pairwise

from regret import CLOCK, LOADS, POLL, Client, metrics, say, serving

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.model import recommended_max_num_seqs
from kvwatch.poller.vllm import parse_scrape

STORM = 100.0
"""Seconds of the storm kvwatch sees before its advice is followed."""


async def watched(judge, port, load, seconds):
    """What is said at each poll while the load runs."""
    client, said, until = Client(port, load, 1), [], CLOCK.monotonic() + seconds
    tasks = [asyncio.create_task(client.always()) for _ in range(load.clients)]
    while (now := CLOCK.monotonic()) < until:
        page = await asyncio.to_thread(metrics, port)
        said.append((now, judge.scraped(parse_scrape(page, now, CLOCK.unix())).assessments[0]))
        await asyncio.sleep(max(0.0, now + POLL - CLOCK.monotonic()))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return said


def changes(values):
    return sum(one != other for one, other in pairwise(values))


async def main(args):
    """Storm, restart, ten minutes; then the count."""
    load, judge = LOADS[args.load], judge_for(Settings(), interval=POLL)
    async with serving(args, load.blocks, load.rungs[0]) as port:
        storm = await watched(judge, port, load, STORM)
    advised = recommended_max_num_seqs(storm[-1][1].advice)
    say(f"{args.load}: advised {advised} at {load.rungs[0]} slots, {storm[-1][1].verdict.cause}")
    async with serving(args, load.blocks, advised) as port:
        after = await watched(judge, port, load, 60 * args.minutes)
    first = next((at for at, one in after if one.advice and one.advice[0].reason.startswith("followed: ")), None)
    say("never called followed" if first is None else f"called followed after {first - after[0][0]:.0f} s")
    told = [one for at, one in after if first is None or at >= first]
    say(f"changes of cause: {changes([one.verdict.cause for one in told])}")
    say(f"changes of the first advice: {changes([(c[0].lever, c[0].proposed) if (c := one.advice) else None for one in told])}")
    for one in {one.verdict.cause: one for one in told}.values():
        say(f"{one.verdict.cause}: {[(c.lever, c.current, c.proposed, c.reason) for c in one.advice[:1]]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", nargs="?", default="fixed 300/200", choices=[name for name, load in LOADS.items() if load.clients])
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--minutes", type=float, default=10.0)
    asyncio.run(main(parser.parse_args()))
