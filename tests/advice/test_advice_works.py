"""The advised number, followed: preemptions stop and the work goes on, on a model of vLLM's scheduler.

Closed loop, blocks of 32 tokens: a request is admitted when all of its prompt fits, decoding takes a block now and then, and when
there is none the youngest sequence is preempted and computed again. A step costs a fixed time, and more for each token and sequence
in it, as measured on the real server of the recordings.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from first_look import first_look

from kvwatch.config.policy import KnownConfig
from kvwatch.model import Cause, EngineConfig, EngineId, GaugeStats, Signals, State, Verdict, Window

BLOCK = 32
BUDGET = 2048
STEPS, WARM_UP = 9000, 3000


@dataclass
class Sequence:
    prompt: int
    output: int
    done: int = 0
    blocks: int = 0

    def blocks_for(self, tokens):
        return math.ceil((self.prompt + self.done + tokens) / BLOCK)


@dataclass
class Run:
    tokens_per_second: float
    ratio: float
    prompt: float
    output: float
    held: float
    running: float


def lognormal(mean, sigma):
    return lambda rng: max(1, int(mean * math.exp(rng.gauss(0, sigma) - sigma * sigma / 2)))


def same(length):
    return lambda _rng: length


def serve(slots, blocks, clients, prompt, output):
    rng = random.Random(1)  # noqa: S311 - a load, not a secret
    free, elapsed, tokens, preempted, held, counts = blocks - 1, 0.0, 0, 0, [], []
    waiting, running, finished = [Sequence(prompt(rng), output(rng)) for _ in range(clients)], [], []
    for step in range(STEPS):
        if step == WARM_UP:  # they all began at once, which no server sees for long
            elapsed, tokens, preempted, held, counts, finished = 0.0, 0, 0, [], [], []
        computed, preempting, place = 0, False, 0
        while place < len(running):
            sequence = running[place]
            need = sequence.blocks_for(1) - sequence.blocks
            while need > free and place < len(running):
                victim = running.pop()
                free, victim.blocks, preempted, preempting = free + victim.blocks, 0, preempted + 1, True
                waiting.insert(0, victim)
            if place < len(running):
                free, sequence.blocks, computed, place = free - need, sequence.blocks + need, computed + 1, place + 1
        while waiting and not preempting and len(running) < slots and computed < BUDGET and waiting[0].blocks_for(1) <= free:
            sequence = waiting.pop(0)
            sequence.blocks = sequence.blocks_for(1)
            free, computed = free - sequence.blocks, computed + sequence.prompt + sequence.done
            running.append(sequence)
        elapsed += 0.004 + 0.00004 * computed + 0.0006 * len(running)
        for sequence in list(running):
            sequence.done, tokens = sequence.done + 1, tokens + 1
            if sequence.done >= sequence.output:
                running.remove(sequence)
                finished.append(sequence)
                free += sequence.blocks
                waiting.append(Sequence(prompt(rng), output(rng)))
        if running:
            held.append((1 - free / (blocks - 1)) / len(running))
            counts.append(len(running))
    return Run(
        tokens_per_second=tokens / elapsed,
        ratio=preempted / (preempted + len(finished)),
        prompt=sum(s.prompt for s in finished) / len(finished),
        output=sum(s.output for s in finished) / len(finished),
        held=sum(held) / len(held),
        running=sum(counts) / len(counts),
    )


def advised_slots(storm, blocks, slots):
    """What kvwatch says when it sees that storm."""
    running = GaugeStats(storm.running, 0, storm.running + 4, storm.running)
    window = Window(seconds=30, samples=7, running=running, waiting=GaugeStats(20, 20, 20, 20))
    seen = Signals(
        at=0.0,
        recent=window,
        fast=window,
        slow=window,
        capacity_tokens=blocks * BLOCK,
        tokens_per_sequence=storm.held * blocks * BLOCK,
        sequence_share=storm.held,
        next_prompt_tokens=storm.prompt,
        output_tokens=storm.output,
    )
    verdict = Verdict(EngineId("demo-8b", "0"), State.KV_BOUND, Cause.PREEMPTING, (), 0.0)
    first = first_look(verdict, seen, EngineConfig(block_size=BLOCK), KnownConfig(max_num_seqs=slots))[0]
    assert first.lever == "--max-num-seqs"
    assert first.proposed is not None
    return int(first.proposed)


@pytest.mark.parametrize(
    ("prompt", "output", "clients", "blocks"),
    [
        pytest.param(same(301), same(200), 32, 160, id="like-the-recordings"),
        pytest.param(lognormal(300, 0.6), lognormal(180, 0.6), 48, 160, id="varied-in-a-small-pool"),
        pytest.param(lognormal(300, 0.6), lognormal(180, 0.6), 128, 640, id="varied-in-a-large-pool"),
        pytest.param(lognormal(300, 1.0), lognormal(200, 1.0), 48, 320, id="long-tails"),
        pytest.param(lognormal(100, 0.5), lognormal(800, 0.5), 48, 400, id="long-answers"),
        pytest.param(lambda rng: rng.randint(1400, 1700), lambda rng: rng.randint(150, 250), 24, 400, id="retrieval-prompts"),
        pytest.param(same(300), lambda rng: 20 if rng.random() < 0.8 else 1000, 128, 1200, id="two-kinds-of-answers"),
    ],
)
def test_following_the_advice_ends_the_evictions_at_about_the_same_throughput(prompt, output, clients, blocks):
    storm = serve(512, blocks, clients, prompt, output)
    assert storm.ratio > 0.04
    after = serve(advised_slots(storm, blocks, 512), blocks, clients, prompt, output)
    assert after.ratio < 0.05
    assert after.tokens_per_second > 0.85 * storm.tokens_per_second
