"""The stories the demo can tell: acts, each a change to the simulated server and what kvwatch should come to say of it.

Times are virtual seconds. The server is an 8B model on a GPU with a small KV cache, 1536 blocks of 16 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvwatch.model import Cause
from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.load import ClosedLoop, LogNormal, OpenLoop, Uniform
from kvwatch.simulator.simulation import Simulation

DOWNTIME: Final = 20.0
SERVER: Final = ServerConfig(num_gpu_blocks=1536, block_size=16, max_num_seqs=64, max_model_len=8192, enable_prefix_caching=False)
_CHAT_PROMPT, _CHAT_OUTPUT = LogNormal(600, 0.4, 64, 4000), LogNormal(400, 0.3, 32, 2500)
_DOCUMENT, _SUMMARY = Uniform(950, 1050), Uniform(150, 250)
_REPORT: Final = Uniform(5500, 6500)
_FALLBACK_SLOTS: Final = 16


@dataclass(frozen=True, slots=True)
class Act:
    """A stretch of the story. *begin* changes the server; it is given the ``--max-num-seqs`` kvwatch advises, if it advises one."""

    title: str
    text: str
    seconds: float
    begin: Callable[[Simulation, int | None], None]
    expected: frozenset[Cause]
    """What kvwatch says by the end of the act is one of these."""


def _restart(max_num_seqs: int) -> Callable[[Simulation, int | None], None]:
    def begin(simulation: Simulation, _advised: int | None) -> None:
        simulation.restart(replace(simulation.config, max_num_seqs=max_num_seqs), downtime=DOWNTIME)

    return begin


def _follow_advice(simulation: Simulation, advised: int | None) -> None:
    simulation.restart(replace(simulation.config, max_num_seqs=advised or _FALLBACK_SLOTS), downtime=DOWNTIME)


def _begin_small_steps(simulation: Simulation) -> None:
    simulation.restart(replace(simulation.config, max_num_batched_tokens=512), downtime=DOWNTIME)
    simulation.set_load(ClosedLoop(24, Uniform(1900, 2100), Uniform(5, 15)))


_CALM: Final = Act(
    "A quiet morning",
    "One request a second. Nothing waits, nothing is preempted.",
    60.0,
    lambda simulation, _: simulation.set_load(OpenLoop(1.0, _CHAT_PROMPT, _CHAT_OUTPUT)),
    frozenset({Cause.OK}),
)
_FEW_CLIENTS: Final = Act(
    "A few clients",
    "Six clients, each with one request at a time. Nothing waits, nothing is preempted.",
    60.0,
    lambda simulation, _: simulation.set_load(ClosedLoop(6, _CHAT_PROMPT, _CHAT_OUTPUT)),
    frozenset({Cause.OK}),
)
_FULL: Final = Act(
    "Full, and fine",
    "Nineteen clients summarise documents. The cache is nearly full, and that is what it is for: nobody waits.",
    100.0,
    lambda simulation, _: simulation.set_load(ClosedLoop(19, _DOCUMENT, _SUMMARY)),
    frozenset({Cause.OK, Cause.KV_HIGH}),
)
_STORM: Final = Act(
    "The campaign",
    "Sixty clients at once and 64 slots. The cache runs out, running requests are preempted and computed again: a preemption storm.",
    140.0,
    lambda simulation, _: simulation.set_load(ClosedLoop(60, _CHAT_PROMPT, _CHAT_OUTPUT)),
    frozenset({Cause.PREEMPTING}),
)
_FIXED: Final = Act(
    "The advice, followed",
    "Restarted with the --max-num-seqs kvwatch advised, under the same sixty clients. Nothing is preempted: who waits, waits in the queue.",
    120.0,
    _follow_advice,
    frozenset({Cause.SEQUENCE_SLOTS, Cause.ADMISSION}),
)
_REPLICAS: Final = Act(
    "Two more replicas",
    "The advice now says how many replicas hold sixty clients. With three of them, twenty are left here.",
    120.0,
    lambda simulation, _: simulation.set_load(ClosedLoop(20, _CHAT_PROMPT, _CHAT_OUTPUT)),
    frozenset({Cause.OK, Cause.KV_HIGH}),
)
_BUSY: Final = Act(
    "A busy morning",
    "Two requests a second. The cache has room for them.",
    60.0,
    lambda simulation, _: simulation.set_load(OpenLoop(2.0, _CHAT_PROMPT, _CHAT_OUTPUT)),
    frozenset({Cause.OK}),
)
_FEW_SLOTS: Final = Act(
    "Too careful",
    "Somebody lowers --max-num-seqs to 4. The cache is nearly empty, and requests wait all the same: slots, not memory.",
    90.0,
    _restart(4),
    frozenset({Cause.SEQUENCE_SLOTS}),
)
_LONG_PROMPTS: Final = Act(
    "Long prompts",
    "Eight clients with prompts of 6 000 tokens. Nothing is preempted, the cache looks half empty, and the next prompt does not fit.",
    120.0,
    lambda simulation, _: simulation.set_load(ClosedLoop(8, _REPORT, Uniform(40, 80))),
    frozenset({Cause.ADMISSION}),
)
_SMALL_STEPS: Final = Act(
    "Long prompts, small steps",
    "Prompts of 2 000 tokens, answers of ten, and --max-num-batched-tokens 512: computing prompts fills every step.",
    90.0,
    lambda simulation, _: _begin_small_steps(simulation),
    frozenset({Cause.STEP_BUDGET}),
)
_FROZEN: Final = Act(
    "The engine hangs",
    "The engine stops in the middle of a step. /metrics goes on answering with the last numbers it had.",
    60.0,
    lambda simulation, _: simulation.freeze(),
    frozenset({Cause.STALLED}),
)
_THAWED: Final = Act("It goes on", "The engine steps again.", 60.0, lambda simulation, _: simulation.thaw(), frozenset({Cause.OK}))

SCENARIOS: Final[Mapping[str, tuple[Act, ...]]] = {
    "story": (_CALM, _FULL, _STORM, _FIXED, _REPLICAS, _FEW_SLOTS),
    "storm": (_CALM, _STORM, _FIXED, _REPLICAS),
    "full": (_CALM, _FULL),
    "step-budget": (_CALM, _SMALL_STEPS),
    "long-prompts": (_CALM, _LONG_PROMPTS),
    "slots": (_BUSY, _FEW_SLOTS),
    "stall": (_FEW_CLIENTS, _FROZEN, _THAWED),
}
