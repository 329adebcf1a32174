"""What following the advice costs or gains against the best limit there is: a ladder of ``--max-num-seqs`` on a real vLLM.

    python tests/bench/regret.py --vllm VENV/bin/vllm --model MODEL --results DIR [--minutes 14] [--rounds 2] [LOAD ...]

A load runs at each rung of its ladder, in rounds down and up again; kvwatch sees the recording of the highest rung alone, and what it
advises there becomes a rung of its own. Every measured rung is a line of DIR/rungs.jsonl and a recording beside it, and what is there is
not measured again: run it in slices. Each call ends with the table of what is there, with the advice of the kvwatch that prints it. The
model may be any that vLLM serves with dummy weights; prompts are random letters, one token each for a byte tokenizer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import string
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from kvwatch.assess import judge_for
from kvwatch.clock import SystemClock
from kvwatch.config.settings import Settings
from kvwatch.incident.recording import Reader, Writer
from kvwatch.incident.replay import rows_of
from kvwatch.model import recommended_max_num_seqs
from kvwatch.poller.vllm import parse_scrape

CLOCK = SystemClock()
POLL, WARM, STARTS = 2.5, 15.0, 240.0
"""Seconds: between scrapes, before anything counts, and until a server answers."""
FIXED_FLAGS = [
    "--load-format",
    "dummy",
    "--enforce-eager",
    "--dtype",
    "bfloat16",
    "--block-size",
    "32",
    "--max-num-batched-tokens",
    "2048",
    "--max-model-len",
    "4096",
]
ON_A_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Load:
    """Clients that send again as soon as they are answered, or arrivals per second; lengths are (median, sigma) in tokens."""

    blocks: int
    rungs: tuple[int, ...]
    prompt: tuple[float, float]
    output: tuple[float, float]
    clients: int = 0
    rate: float = 0.0
    shared: int = 0


LOADS = {
    "fixed 300/200": Load(160, (64, 24, 16, 13, 10, 8, 4), (300, 0), (200, 0), clients=32),
    "few long": Load(160, (64, 4, 3, 2), (1000, 0), (400, 0), clients=4),
    "long outputs": Load(160, (64, 8, 5, 4, 3), (60, 0), (900, 0), clients=16),
    "chat, closed": Load(160, (64, 16, 12, 8, 6), (200, 0.8), (150, 0.8), clients=32),
    "chat, arrivals": Load(160, (64, 16, 12, 8, 6), (200, 0.8), (150, 0.8), rate=2.5),
    "shared prefix": Load(176, (64, 14, 10, 8, 6), (150, 0), (150, 0), clients=20, shared=2000),
    "rag": Load(300, (64, 4, 3, 2), (2500, 0.3), (40, 0.3), clients=7),
}


def drawn(rng, median, sigma):
    return max(8, min(3000, round(rng.lognormvariate(0, sigma) * median)))


class Client:
    """Sends completions as a stream and notes when tokens came."""

    def __init__(self, port, load, seed, further=None):
        self.port, self.load, self.rng = port, load, random.Random(seed)  # noqa: S311 - lengths of prompts
        self.further = further or {}
        """Further fields of each request."""
        self.prefix = "".join(self.rng.choices(string.ascii_lowercase, k=load.shared))
        self.first, self.gaps = [], []

    async def one(self):
        prompt = self.prefix + "".join(self.rng.choices(string.ascii_lowercase, k=drawn(self.rng, *self.load.prompt)))
        asked = {"model": "m", "prompt": prompt, "max_tokens": drawn(self.rng, *self.load.output), "ignore_eos": True, "stream": True}
        asked |= self.further
        body = json.dumps(asked).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = (
                f"POST /v1/completions HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            began, last = CLOCK.monotonic(), None
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    now = CLOCK.monotonic()
                    if last is None:
                        self.first.append((now, now - began))
                    else:
                        self.gaps.append((now, now - last))
                    last = now
        finally:
            writer.close()

    async def always(self):
        while True:
            await self.one()

    async def arrivals(self):
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self.rng.expovariate(self.load.rate))
                group.create_task(self.one())


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return answer.read()


def counted(page):
    """Finished requests, preemptions and generated tokens so far."""
    engine = parse_scrape(page, 0.0).snapshots[0]
    return {name: getattr(engine, name) or 0.0 for name in ("finished", "preemptions", "generation_tokens")}


async def measure(port, load, seconds, seed):
    """One load on one server: what was counted after the warm-up, and every page with its unix second."""
    client, pages, before, start = Client(port, load, seed), [], None, 0.0
    began = CLOCK.monotonic()
    tasks = [asyncio.create_task(client.arrivals())] if load.rate else [asyncio.create_task(client.always()) for _ in range(load.clients)]
    while (now := CLOCK.monotonic()) < began + WARM + seconds:
        pages.append((CLOCK.unix(), await asyncio.to_thread(metrics, port)))
        if before is None and now >= began + WARM:
            before, start = counted(pages[-1][1]), now
        await asyncio.sleep(max(0.0, now + POLL - CLOCK.monotonic()))
    after, minutes = counted(await asyncio.to_thread(metrics, port)), (CLOCK.monotonic() - start) / 60
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    done = {name: value - before[name] for name, value in after.items()}
    first, gaps = ([value for at, value in found if at >= start] for found in (client.first, client.gaps))
    left = done["finished"] + done["preemptions"]
    preempted = done["preemptions"] / left if left else None
    return {"minutes": minutes, **done, "preempted": preempted, "ttft_p95": percentile(first, 95), "itl_p99": percentile(gaps, 99)}, pages


def percentile(values, percent):
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else None


def unused_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.asynccontextmanager
async def serving(args, blocks, rung):
    """A vLLM with so many blocks and slots; its port."""
    port = unused_port()
    flags = [*FIXED_FLAGS, "--num-gpu-blocks-override", str(blocks), "--max-num-seqs", str(rung)]
    command = [args.vllm, "serve", args.model, "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port), *flags]
    log = await asyncio.to_thread(open, args.log, "ab")
    process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **ON_A_CPU})
    try:
        until = CLOCK.monotonic() + STARTS
        while True:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(metrics, port)
                break
            if process.returncode is not None or CLOCK.monotonic() > until:
                sys.exit(f"vLLM did not start: see {args.log}")
            await asyncio.sleep(0.5)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        log.close()


class Results:
    """A directory of measured rungs."""

    def __init__(self, path):
        self._path = path
        path.mkdir(parents=True, exist_ok=True)

    @property
    def rows(self):
        """One dictionary a rung and round."""
        path = self._path / "rungs.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def add(self, row, pages):
        """Keep one rung, the pages of it first."""
        recording = self._recording(row["load"], row["rung"], row["round"])
        recording.unlink(missing_ok=True)
        with Writer(recording, "regret") as writer:
            for unix, page in pages:
                writer.body(unix, page.decode())
        with (self._path / "rungs.jsonl").open("a") as out:
            out.write(json.dumps(row) + "\n")

    def advised(self, load):
        """What kvwatch advises last while it watches the highest rung alone."""
        recording, number = self._recording(load, LOADS[load].rungs[0], 1), None
        if recording.exists():
            judge = judge_for(Settings(), interval=POLL)
            with Reader(recording, sys.exit) as entries:
                for row in (row for entry in entries for row in rows_of(entry, "regret", judge)):
                    number = recommended_max_num_seqs(row.assessment.advice) or number
        return number

    def missing(self, loads, rounds):
        """Load, rung and round of what is not measured yet; the highest rung first of all, for what it advises is a rung too."""
        measured = {(row["load"], row["rung"], row["round"]) for row in self.rows}
        for number in range(1, rounds + 1):
            for name in loads:
                top, *others = LOADS[name].rungs
                rungs = [top, *sorted({*others, self.advised(name) or top} - {top}, reverse=number % 2 == 1)]
                yield from ((name, rung, number) for rung in rungs if (name, rung, number) not in measured)

    def _recording(self, load, rung, number):
        return self._path / f"{load.replace('/', '-').replace(', ', '-').replace(' ', '-')}_{rung}_{number}.jsonl.gz"


def table(results):
    """Markdown: each rung with means over its rounds, finished requests per minute against the best rung's."""
    yield "| load | `--max-num-seqs` | finished/min | of the best | preempted | TTFT p95 | ITL p99 | rounds |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in LOADS:
        advised, mine = results.advised(name), [row for row in results.rows if row["load"] == name]
        rungs = {rung: [row for row in mine if row["rung"] == rung] for rung in sorted({row["rung"] for row in mine}, reverse=True)}
        rates = {rung: statistics.mean(row["finished"] / row["minutes"] for row in found) for rung, found in rungs.items()}
        for rung, found in rungs.items():
            mark = " (advised)" if rung == advised else ""
            mean = {key: statistics.mean([row[key] for row in found if row[key] is not None] or [0.0]) for key in MEANS}
            yield (
                f"| {name} | {rung}{mark} | {rates[rung]:.1f} | {rates[rung] / max(rates.values()):.0%} | {mean['preempted']:.0%} "
                f"| {mean['ttft_p95']:.2f} s | {1000 * mean['itl_p99']:.0f} ms | {len(found)} |"
            )


MEANS = ("preempted", "ttft_p95", "itl_p99")


async def main(args):
    """Measure what is missing until the time is up, then print the table."""
    until, results = CLOCK.monotonic() + 60 * args.minutes, Results(Path(args.results))
    while CLOCK.monotonic() < until and (todo := next(results.missing(args.loads or LOADS, args.rounds), None)):
        name, rung, number = todo
        load, busy = LOADS[name], os.getloadavg()[0]
        async with serving(args, load.blocks, rung) as port:
            found, pages = await measure(port, load, args.seconds, seed=number)
        results.add({"load": name, "rung": rung, "round": number, "host_load": busy, **found}, pages)
        say(f"{name}, {rung} slots, round {number}: {found}")
    say("\n".join(table(results)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=", ".join(LOADS))
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--results", required=True)
    parser.add_argument("--log", default=os.devnull, help="vLLM's own output goes there")
    parser.add_argument("--minutes", type=float, default=14.0, help="no rung is begun after that")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="counted of each rung")
    asyncio.run(main(parser.parse_args()))
