"""After advice was followed at an unchanged load it holds still, and says what came of it: on the simulator, ten minutes, three seeds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.model import State, recommended_max_num_seqs
from kvwatch.poller.vllm import parse_scrape
from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.load import ClosedLoop, Fixed, LogNormal
from kvwatch.simulator.simulation import Simulation

POLL = 5.0
CHAT = ServerConfig(num_gpu_blocks=1536, block_size=16, max_num_seqs=64, max_model_len=8192, enable_prefix_caching=False)
LOADS = {
    "chat": (CHAT, ClosedLoop(60, LogNormal(600, 0.4, 64, 4000), LogNormal(400, 0.3, 32, 2500))),
    "one length": (CHAT, ClosedLoop(60, Fixed(600), Fixed(400))),
    "long answers": (CHAT, ClosedLoop(50, LogNormal(100, 0.4, 16, 1000), LogNormal(900, 0.3, 32, 2500))),
}


class Watched:
    def __init__(self, seed, config, load):
        self.simulation = Simulation(config, load, seed=seed, start_unix=1_700_000_000.0)
        self.judge = judge_for(Settings(), interval=POLL)

    def watch(self, seconds):
        """What is said at each poll of the next *seconds*; none while the server is down."""
        said, end = [], self.simulation.now + seconds
        while self.simulation.now < end:
            self.simulation.advance(self.simulation.now + POLL)
            if self.simulation.serving:
                scrape = parse_scrape(expose(self.simulation).encode(), self.simulation.now, self.simulation.unix)
                said.append(self.judge.scraped(scrape).assessments[0])
        return said


def counted(simulation):
    """Finished and preempted since the server started."""
    counters = simulation.engines[0].counters
    return counters.finished, counters.preemptions


def changes_of(values):
    return sum(one != other for one, other in pairwise(values))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", LOADS)
def test_followed_advice_holds_still_and_is_called_followed(name, seed):
    config, load = LOADS[name]
    watched = Watched(seed, config, load)
    watched.watch(60)
    before = counted(watched.simulation)
    advised = recommended_max_num_seqs(watched.watch(120)[-1].advice)
    assert advised is not None
    storm = [now - then for now, then in zip(counted(watched.simulation), before, strict=True)]
    watched.simulation.restart(replace(config, max_num_seqs=advised), downtime=20)
    after = watched.watch(120)
    before = counted(watched.simulation)
    after += watched.watch(480)
    calm = [now - then for now, then in zip(counted(watched.simulation), before, strict=True)]
    # At the same load hardly any is preempted, and as many finish; where answers are nine times their prompts, a fifth fewer.
    assert calm[1] <= 0.02 * sum(calm)
    assert calm[0] / 480 >= (0.75 if name == "long answers" else 0.97) * storm[0] / 120
    bound = [one for one in after if one.verdict.state in (State.KV_BOUND, State.COMPUTE_BOUND)]
    settled = bound[bound.index(next(one for one in bound if one.advice and one.advice[0].reason.startswith("followed: "))) :]
    assert len(settled) * POLL >= 450  # of 600 s, 20 of them down: it was said soon, and nothing came between
    assert changes_of([one.verdict.cause for one in settled]) <= 1
    assert changes_of([(one.advice[0].lever, one.advice[0].proposed) for one in settled]) <= 1
    first = settled[-1].advice[0]
    assert (first.lever, "followed: --max-num-seqs" in first.reason) == ("replicas", True)
    used = settled[-1].signals.slow.kv_usage.peak
    assert ("nothing more to gain here" in first.reason, "may go up again" in first.reason) == (used >= 0.85, used < 0.85)
