"""Advice at a first look: the limit by the sizes in the signals, as the classifier and the memory of advice work it out."""

from __future__ import annotations

from dataclasses import replace

from kvwatch.advice.advise import advise
from kvwatch.advice.inputs import AdviceInputs
from kvwatch.advice.limit import SteadyLimit
from kvwatch.advice.neighbours import Neighbours, Peers
from kvwatch.capacity.concurrency import SequenceSizes, concurrency_limit


def sized(signals, config):
    """*signals* with how many sequences a pool of those sizes holds."""
    sizes = SequenceSizes(
        signals.next_prompt_tokens,
        signals.output_tokens,
        signals.tokens_per_sequence,
        signals.sequence_share,
        signals.prefix_hit_ratio,
        config.block_size,
        None if signals.fast.running is None else signals.fast.running.mean,
    )
    limit = concurrency_limit(signals.capacity_tokens, sizes)
    return signals if limit is None else replace(signals, sustainable_sequences=limit.sequences, sustainable_arithmetic=limit.arithmetic)


def first_look(verdict, signals, config, known, *, siblings=(), replicas=()):
    """What is advised where nothing is remembered."""
    seen = SteadyLimit().settle(0.0, AdviceInputs(verdict, sized(signals, config), config, known), None, hold=True)
    return advise(verdict, seen, config, known, neighbours=Neighbours(Peers((seen, *siblings)), Peers(replicas)))
