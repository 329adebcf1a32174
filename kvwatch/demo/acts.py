"""The stories the demo can tell: acts, each a change to the simulated server and what kvwatch should come to say of it.

Times are virtual seconds. The server is an 8B model on a GPU with a small KV cache, 1536 blocks of 16 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvwatch.model import Cause
from kvwatch.simulator.config import ServerConfig
from kvwatch.simulator.load import IDLE, ClosedLoop, Load, LogNormal, OpenLoop, Uniform
from kvwatch.simulator.simulation import Simulation

DOWNTIME: Final = 20.0
SERVER: Final = ServerConfig(num_gpu_blocks=1536, block_size=16, max_num_seqs=64, max_model_len=8192, enable_prefix_caching=False)
_CHAT_PROMPT, _CHAT_OUTPUT = LogNormal(600, 0.4, 64, 4000), LogNormal(400, 0.3, 32, 2500)
_DOCUMENT, _SUMMARY = Uniform(950, 1050), Uniform(150, 250)
_REPORT: Final = Uniform(6200, 6400)
_QUESTION, _NOTE = Uniform(250, 350), Uniform(20, 60)
_FALLBACK_SLOTS: Final = 16


Begin = Callable[[Simulation, int | None], None]
"""Changes the server; it is given the ``--max-num-seqs`` kvwatch advises, if it advises one."""


@dataclass(frozen=True, slots=True)
class Act:
    """One part of a scenario: what happens to the server, in *text* for people, and for how many virtual seconds."""

    title: str
    text: str
    seconds: float
    begin: Begin
    expected: frozenset[Cause]
    """What kvwatch says by the end of the act is one of these."""


def _load(load: Load) -> Begin:
    """Other clients."""
    return lambda simulation, _: simulation.set_load(load)


def _restart(max_num_seqs: int) -> Begin:
    """The same clients, other slots."""

    def begin(simulation: Simulation, _advised: int | None) -> None:
        simulation.restart(replace(simulation.config, max_num_seqs=max_num_seqs), downtime=DOWNTIME)

    return begin


def _follow_advice(simulation: Simulation, advised: int | None) -> None:
    simulation.restart(replace(simulation.config, max_num_seqs=advised or _FALLBACK_SLOTS), downtime=DOWNTIME)


def _begin_small_steps(simulation: Simulation) -> None:
    simulation.restart(replace(simulation.config, max_num_batched_tokens=512), downtime=DOWNTIME)
    simulation.set_load(ClosedLoop(24, Uniform(1900, 2100), Uniform(5, 15)))


def _begin_costly_sequences(simulation: Simulation) -> None:
    simulation.profile = replace(simulation.profile, per_sequence=0.008)
    simulation.set_load(ClosedLoop(20, _QUESTION, _NOTE))
    simulation.restart(replace(simulation.config, num_gpu_blocks=4 * SERVER.num_gpu_blocks, max_num_seqs=128), downtime=0.0)


def _begin_costly_stream(simulation: Simulation) -> None:
    simulation.profile = replace(simulation.profile, frontend_cpu_per_token=15 * simulation.profile.frontend_cpu_per_token)
    simulation.set_load(ClosedLoop(20, _CHAT_PROMPT, _CHAT_OUTPUT))


def _begin_grammars(simulation: Simulation) -> None:
    simulation.grammar_seconds = 12.0
    simulation.set_load(ClosedLoop(16, _CHAT_PROMPT, _CHAT_OUTPUT))


def _begin_sleep(simulation: Simulation) -> None:
    simulation.set_load(IDLE)
    simulation.asleep = True


_CALM: Final = Act(
    "A quiet morning",
    "One request a second. Nothing waits, nothing is preempted.",
    60.0,
    _load(OpenLoop(1.0, _CHAT_PROMPT, _CHAT_OUTPUT)),
    frozenset({Cause.OK}),
)
_FEW_CLIENTS: Final = Act(
    "A few clients",
    "Six clients, each with one request at a time. Nothing waits, nothing is preempted.",
    60.0,
    _load(ClosedLoop(6, _CHAT_PROMPT, _CHAT_OUTPUT)),
    frozenset({Cause.OK}),
)
_FULL: Final = Act(
    "Full, and fine",
    "Nineteen clients summarise documents. The cache is nearly full, and that is what it is for: nobody waits.",
    100.0,
    _load(ClosedLoop(19, _DOCUMENT, _SUMMARY)),
    frozenset({Cause.OK, Cause.KV_HIGH}),
)
_STORM: Final = Act(
    "The campaign",
    "Sixty clients at once and 64 slots. The cache runs out, running requests are preempted and computed again: a preemption storm.",
    140.0,
    _load(ClosedLoop(60, _CHAT_PROMPT, _CHAT_OUTPUT)),
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
    "Three more replicas",
    "The advice now is replicas. With four of them, fifteen of the sixty clients are left here, and nobody waits.",
    120.0,
    _load(ClosedLoop(15, _CHAT_PROMPT, _CHAT_OUTPUT)),
    frozenset({Cause.OK, Cause.KV_HIGH}),
)
_BUSY: Final = Act(
    "A busy morning",
    "Two requests a second. The cache has room for them.",
    60.0,
    _load(OpenLoop(2.0, _CHAT_PROMPT, _CHAT_OUTPUT)),
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
    "Eight clients with prompts of 6 300 tokens. Nothing is preempted, a fifth of the cache is free, and the next prompt does not fit.",
    120.0,
    _load(ClosedLoop(8, _REPORT, Uniform(40, 80))),
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

_LEFT: Final = Act(
    "Everybody leaves",
    "No request comes any more, and the cache empties.",
    60.0,
    _load(IDLE),
    frozenset({Cause.IDLE}),
)
_COSTLY_SEQUENCES: Final = Act(
    "A logits processor",
    "Four times the cache, and a logits processor in Python that takes 8 ms a sequence in each step. Twenty clients, and nobody waits.",
    90.0,
    lambda simulation, _: _begin_costly_sequences(simulation),
    frozenset({Cause.OK}),
)
_NO_MORE_TOKENS: Final = Act(
    "More clients, no more tokens",
    "Sixty clients. Three times as many requests run at once, and they share the tokens that twenty had.",
    120.0,
    _load(ClosedLoop(60, _QUESTION, _NOTE)),
    frozenset({Cause.COMPUTE}),
)
_COSTLY_STREAM: Final = Act(
    "A busy API server",
    "Twenty clients, and fifteen times as much work for each token in the API server. Its one core is full, and the engine waits for it.",
    90.0,
    lambda simulation, _: _begin_costly_stream(simulation),
    frozenset({Cause.FRONTEND}),
)
_GRAMMARS: Final = Act(
    "Slow grammars",
    "Sixteen clients ask for JSON, and each request waits twelve seconds until its grammar is compiled. Slots and cache are free.",
    90.0,
    lambda simulation, _: _begin_grammars(simulation),
    frozenset({Cause.DEFERRED}),
)
_KILLED: Final = Act(
    "The server is gone",
    "Its process was killed, and the connection is refused.",
    330.0,
    lambda simulation, _: simulation.restart(downtime=3600.0),
    frozenset({Cause.UNREACHABLE}),
)
_BACK: Final = Act(
    "It is back", "Started again, counters from zero.", 90.0, lambda simulation, _: simulation.restart(downtime=0.0), frozenset({Cause.OK})
)
_ASLEEP: Final = Act(
    "Put to sleep",
    "Somebody calls /sleep to lend the GPU to a training run. Its numbers stand still.",
    60.0,
    lambda simulation, _: _begin_sleep(simulation),
    frozenset({Cause.ASLEEP}),
)
_NO_STATISTICS: Final = Act(
    "Statistics switched off",
    "Restarted with --disable-log-stats: it serves, and /metrics has no vllm: series.",
    90.0,
    lambda simulation, _: simulation.restart(replace(simulation.config, disable_log_stats=True), downtime=DOWNTIME),
    frozenset({Cause.STATS_DISABLED}),
)

SCENARIOS: Final[Mapping[str, tuple[Act, ...]]] = {
    "story": (_CALM, _FULL, _STORM, _FIXED, _REPLICAS, _FEW_SLOTS),
    "storm": (_CALM, _STORM, _FIXED, _REPLICAS),
    "full": (_CALM, _FULL),
    "step-budget": (_CALM, _SMALL_STEPS),
    "compute": (_COSTLY_SEQUENCES, _NO_MORE_TOKENS),
    "frontend": (_CALM, _COSTLY_STREAM),
    "deferred": (_CALM, _GRAMMARS),
    "long-prompts": (_CALM, _LONG_PROMPTS),
    "slots": (_BUSY, _FEW_SLOTS),
    "stall": (_FEW_CLIENTS, _FROZEN, _THAWED),
    "idle": (_CALM, _LEFT),
    "dead": (_CALM, _KILLED, _BACK),
    "asleep": (_CALM, _ASLEEP),
    "no-statistics": (_CALM, _NO_STATISTICS),
}
