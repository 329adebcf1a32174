"""kvwatch's own classifier sees in the simulated scenario what was the truth in the recorded one."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest
from compare_recordings import CASES, RECORDINGS, phases, read_recording, window
from recorded_load import play

from kvwatch.classifier.target import TargetClassifier
from kvwatch.config.policy import Policy
from kvwatch.model import Cause, State
from kvwatch.poller.vllm import parse_scrape
from kvwatch.simulator.__main__ import add_server_flags, server_config
from kvwatch.simulator.config import CPU_25M
from kvwatch.simulator.exposition import expose
from kvwatch.simulator.simulation import Simulation

CAUSES_OF_LABELS = {
    "kv_storm": {Cause.PREEMPTING},
    "storm_mfu": {Cause.PREEMPTING},
    "storm_mfu_apc": {Cause.PREEMPTING},
    "restart_under_storm": {Cause.PREEMPTING},
    "dp2_one_starved": {Cause.PREEMPTING},
    "kv_admission": {Cause.ADMISSION},
    "kv_admission_rag": {Cause.ADMISSION, Cause.PREEMPTING},
    "kv_full_but_fine": {Cause.OK, Cause.KV_HIGH},
    "kv_high_fine": {Cause.OK, Cause.KV_HIGH},
    "seq_limit": {Cause.SEQUENCE_SLOTS},
    "compute": {Cause.COMPUTE, Cause.SEQUENCE_SLOTS},
    "healthy_steady": {Cause.OK, Cause.IDLE},
    "stalled": {Cause.OK},
}
"""From ``labels.json``; of `prefill_budget` only the state is asked, for all limits of the compute side are near one another there."""


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case.name}-{case.phase}-{case.overload}") for case in CASES])
def test_last_twenty_seconds_of_the_loaded_phase_get_the_recorded_verdict(case):
    header, _ = read_recording(RECORDINGS / f"{case.name}.jsonl.xz")
    parser = ArgumentParser()
    add_server_flags(parser)
    simulation = Simulation(server_config(parser.parse_args(header["flags"])), profile=CPU_25M, seed=1, start_unix=1.75e9)
    play(simulation, phases(header, case, RECORDINGS))
    classifier = TargetClassifier(Policy(), interval=5.0)
    verdicts = []
    _, end = window(header, case.phase)
    for poll in range(int(end // 5)):
        simulation.advance(poll * 5.0)
        assessments = classifier.observe(parse_scrape(expose(simulation).encode(), simulation.now))
        verdicts.append([assessment.verdict for assessment in assessments])
    causes = {verdict.cause for poll in verdicts[-4:] for verdict in poll}
    if case.name == "prefill_budget":
        assert {verdict.state for poll in verdicts[-4:] for verdict in poll} == {State.COMPUTE_BOUND}
    else:
        assert causes <= CAUSES_OF_LABELS[case.name]
