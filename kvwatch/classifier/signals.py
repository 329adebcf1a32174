"""Snapshots over windows become `Signals`: everything that verdict, advice and exporter need to know, derived once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from kvwatch.capacity.concurrency import SequenceSizes, concurrency_limit
from kvwatch.capacity.pool import demand, seconds_to_full
from kvwatch.capacity.pool_fit import PoolShape
from kvwatch.classifier.batch import batch_of, largest, tokens_per_step
from kvwatch.classifier.history import History
from kvwatch.classifier.lengths import moments_of
from kvwatch.classifier.quantiles import quantiles_between
from kvwatch.classifier.quiet import Quiet
from kvwatch.classifier.saturation import ThroughputCurve, work_of
from kvwatch.classifier.sizes import held_beyond, mean_of, mean_running, own_tokens, prefix_hit_ratio_of, prompt_length, sequence_share_of
from kvwatch.classifier.windows import computed_prompt, gauge, increase, preemption_ratio, prefill_share, queue_of, rate, summarise
from kvwatch.config.policy import KnownConfig, Policy
from kvwatch.model import GaugeStats, Saturation, Signals, Snapshot, Window

RECENT_SECONDS: Final = 15.0
"""The window that decides the state: three polls at the default interval."""
_LONGEST_FORECAST: Final = 3600.0
"""Seconds; a cache that fills more slowly does not fill."""
_CEILING_TOLERANCE: Final = 0.02
"""Two percent: a count of 256 slots dips by a few while finished requests are replaced."""
_FILL_SECONDS: Final = 10.0
"""A fill rate over less than this is noise."""


def derive(
    history: History,
    policy: Policy,
    *,
    interval: float,
    capacity_tokens: int | None,
    known: KnownConfig,
    curve: ThroughputCurve,
    shape: PoolShape | None = None,
    clients_left: bool = False,
    proven_ceiling: float | None = None,
    process_cpu_ratio: float | None = None,
    gpu_utilization: float | None = None,
) -> Signals:
    """The signals of one engine from its *history* (at least two snapshots), polled about every *interval* seconds."""
    slack = interval / 2
    recent = history.within(max(RECENT_SECONDS, interval), slack)
    fast = history.within(max(policy.window.fast, 2 * interval), slack)
    slow = history.spread()
    last, first, fast_window, slow_window = history.last, slow[0], summarise(fast), summarise(slow)
    prompt, output = prompt_length(fast) or prompt_length(slow), mean_of(first, last, "generation_length_sum", "generation_length_count")
    beyond = None if shape is not None and shape.fixed else held_beyond(slow_window, capacity_tokens, prompt, output)
    nobodys = max(history.traffic.held_at_rest or 0.0, beyond or 0.0)
    sequence_share, usual_share = sequence_share_of(fast, nobodys), sequence_share_of(slow, nobodys)
    tokens_per_sequence = own_tokens(_times(usual_share, capacity_tokens), prompt, output)
    prefix_hits = prefix_hit_ratio_of(first, last)
    held = tokens_per_sequence if shape is None or not shape.fixed or usual_share is None else shape.tokens_in(usual_share)
    prompts, outputs = moments_of(first.prompt_lengths, last.prompt_lengths), moments_of(first.generation_lengths, last.generation_lengths)
    block, running = last.config.block_size, mean_running(slow)
    sizes = SequenceSizes(prompt, output, held, sequence_share, prefix_hits, block, running, prompts, outputs)
    limit = concurrency_limit(capacity_tokens, sizes, shape)
    preempted = _more(slow_window.preemptions, history.traffic.preempted(policy.window.slow))
    batches = [batch_of(window[0], last, history.highest_running) for window in (recent, fast)]
    decoding = largest(batch.decoding for batch in batches)
    with_queue = [s for s in fast if queue_of(s)]
    queued = gauge([s.running for s in with_queue])
    seen = known.max_num_seqs or history.highest_running  # samples are compared with samples: the batch from counters may be too large
    ceiling = known.max_num_seqs or max(history.highest_running, decoding or 0.0)
    generation_rate, prompt_rate = rate(fast_window.generation_tokens, fast_window), rate(fast_window.prompt_tokens, fast_window)
    return Signals(
        at=last.at,
        recent=summarise(recent),
        fast=fast_window,
        slow=slow_window,
        running=last.running,
        waiting=last.waiting,
        kv_usage=last.kv_usage,
        idle=_is_idle(*recent[-2:]),
        clients_left=clients_left,
        capacity_tokens=capacity_tokens,
        free_tokens=None if last.kv_usage is None else _times(1 - last.kv_usage, capacity_tokens),
        tokens_per_sequence=tokens_per_sequence,
        next_prompt_tokens=prompt,
        output_tokens=output,
        tokens_at_end=sizes.at_end if capacity_tokens is None else sizes.part_of(capacity_tokens),
        demand_ratio=_demand([last], tokens_per_sequence, capacity_tokens),
        lasting_demand_ratio=_demand(slow, tokens_per_sequence, capacity_tokens),
        sustainable_sequences=None if limit is None else limit.sequences,
        sustainable_arithmetic=None if limit is None else limit.arithmetic,
        seconds_to_full=_seconds_to_full(fast),
        generation_tokens_per_second=generation_rate,
        prompt_tokens_per_second=prompt_rate,
        recompute_ratio=_recompute_ratio(slow_window, sequence_share, capacity_tokens),
        prefix_hit_ratio=prefix_hits,
        time_to_first_token=quantiles_between(first.time_to_first_token, last.time_to_first_token),
        inter_token_latency=quantiles_between(first.inter_token_latency, last.inter_token_latency),
        e2e_latency=quantiles_between(first.e2e_latency, last.e2e_latency),
        queue_time=quantiles_between(first.queue_time, last.queue_time),
        process_cpu_ratio=process_cpu_ratio,
        gpu_utilization=gpu_utilization,
        running_ceiling=ceiling,
        at_ceiling_share=_at_ceiling_share(with_queue, seen),
        running_plateau=_plateau(queued, known.max_num_seqs),
        usage_at_ceiling=_usage_at_ceiling(with_queue, seen),
        running_while_queued=queued.mean if queued is not None else None,
        sequence_share=sequence_share,
        step_token_budget=known.max_num_batched_tokens,
        sequences_decoding=decoding,
        sequences_prefilling=_prefilling(queued, decoding),
        sequences_recomputing=_prefilling(fast_window.running, decoding) if fast_window.prompt_tokens == 0 else None,
        sequences_held=largest(batch.held for batch in batches),
        tokens_per_step=tokens_per_step(fast[0], last, batches[-1]),
        prefill_token_share=prefill_share(fast_window),
        saturation=_saturation(fast_window, sequence_share, curve),
        slowdown=None if _is_uneven(history.quiet, fast_window, fast[0].at) else _slowdown(fast_window, decoding, sequence_share, curve),
        queued_seconds=history.traffic.queued_seconds(),
        cool_seconds=history.traffic.cool_seconds(),
        preempted=preempted,
        preempted_lately=_more(fast_window.preemptions, history.traffic.preempted(fast_window.seconds)),
        preempted_share=preemption_ratio(preempted, slow_window.finished, slow_window.running),
        held_at_rest=history.traffic.held_at_rest,
        held_beyond=beyond,
        stall_patience=history.quiet.patience(),
        longest_step=history.quiet.longest_step,
        ceiling_known=known.max_num_seqs is not None,
        ceiling_proven=proven_ceiling == history.highest_running,
        seconds_without_progress=history.quiet.seconds_without_progress(),
        seconds_without_life=history.quiet.seconds_without_life(),
    )


def _is_idle(before: Snapshot, after: Snapshot) -> bool:
    """No request at either of two scrapes, and no token between them: two gaps between two waves of requests are not rest."""
    at_rest = all(s.running == 0 and s.waiting == 0 for s in (before, after))
    return at_rest and not increase(before.generation_tokens, after.generation_tokens)


def _times(share: float | None, tokens: int | None) -> float | None:
    return None if share is None or tokens is None else share * tokens


def _more(counted: float | None, seen: float) -> float | None:
    """Preemptions: a counter may lag behind what the gauges show, and gauges see only a part."""
    return max(counted, seen) if counted is not None else (seen or None)


def _prefilling(running: GaugeStats | None, decoding: float | None) -> float | None:
    """Running sequences that got no token: they were in the middle of their prefill.

    A difference that sampling a gauge explains is none.
    """
    if running is None or decoding is None:
        return None
    left = running.mean - decoding
    return left if left > _CEILING_TOLERANCE * running.mean else 0.0


def _at_ceiling_share(queued: Sequence[Snapshot], ceiling: float | None) -> float | None:
    """Share of the samples with a queue in which `running` stood at *ceiling* (within 2 %)."""
    known = [s for s in queued if s.running is not None]
    if not known or not ceiling:
        return None
    return sum(_at_ceiling(s, ceiling) for s in known) / len(known)


def _plateau(queued: GaugeStats | None, given: int | None) -> float | None:
    """Where `running` stood all the time while requests waited, if the max_num_seqs that was *given* is higher."""
    if queued is None or given is None or not 0 < queued.low == queued.peak < given * (1 - _CEILING_TOLERANCE):
        return None
    return queued.peak


def _usage_at_ceiling(queued: Sequence[Snapshot], ceiling: float) -> float | None:
    """The second lowest usage there: a single sample may show a batch whose prompts are only being computed."""
    usages = sorted(s.kv_usage for s in queued if _at_ceiling(s, ceiling) and s.kv_usage is not None)
    return usages[1] if len(usages) > 1 else None


def _at_ceiling(snapshot: Snapshot, ceiling: float) -> bool:
    """Whether `running` stands at *ceiling* (within 2 %)."""
    return snapshot.running is not None and 0 < ceiling * (1 - _CEILING_TOLERANCE) <= snapshot.running


def _demand(snapshots: Sequence[Snapshot], tokens_per_sequence: float | None, capacity_tokens: int | None) -> float | None:
    """KV that the requests of *snapshots*, by their median, would like to hold, as a multiple of the pool."""
    known = [s.running + s.waiting for s in snapshots if s.running is not None and s.waiting is not None]
    if not known:
        return None
    requests = median(known)
    if requests == 0:
        return 0.0
    return None if tokens_per_sequence is None or not capacity_tokens else demand(requests, tokens_per_sequence, capacity_tokens)


def _seconds_to_full(snapshots: Sequence[Snapshot]) -> float | None:
    """Seconds until usage is 1 at the rate of the fast window; ``None`` while it does not rise."""
    known = [s for s in snapshots if s.kv_usage is not None]
    if len(known) < 3 or known[-1].at - known[0].at < _FILL_SECONDS:  # noqa: PLR2004 - two points always make a line
        return None
    mean_at, mean_usage = sum(s.at for s in known) / len(known), sum(s.kv_usage or 0.0 for s in known) / len(known)
    slope = sum((s.at - mean_at) * ((s.kv_usage or 0.0) - mean_usage) for s in known) / sum((s.at - mean_at) ** 2 for s in known)
    return seconds_to_full(1 - (known[-1].kv_usage or 0.0), slope) if slope > 1 / _LONGEST_FORECAST else None


def _recompute_ratio(window: Window, sequence_share: float | None, capacity_tokens: int | None) -> float | None:
    """Estimate of the share of computed tokens that were computed before: each preemption throws away about one sequence's KV.

    vLLM counts no recomputed tokens. Prefix caching gives part of them back, so this is an upper estimate.
    """
    prompt = computed_prompt(window)
    if window.preemptions is None or window.generation_tokens is None or prompt is None:
        return None
    if window.preemptions == 0:
        return 0.0
    lost = _times(sequence_share, capacity_tokens)
    if lost is None:
        return None
    redone = window.preemptions * lost
    computed = redone + prompt + window.generation_tokens
    return redone / computed if computed > 0 else None


def _saturation(window: Window, context: float | None, curve: ThroughputCurve) -> Saturation | None:
    """What the curve says of the batch and the work rate of this window."""
    work = work_of(window)
    return None if work is None else curve.saturation(work, context)


def _is_uneven(quiet: Quiet, window: Window, began: float) -> bool:
    """Whether the rates of a window that *began* then say nothing of the engine's speed: after a stall, or among a few long steps."""
    return quiet.thawed_since(began) or quiet.steps_fill(window.seconds)


def _slowdown(window: Window, decoding: float | None, context: float | None, curve: ThroughputCurve) -> Saturation | None:
    """Whether the same batch once got several times as much done; not asked where a sample found nothing running.

    The batch is those that get tokens: a sequence in a long prefill yields none, and is not slow for that.
    """
    work = work_of(window)
    if work is None or window.running is None or not window.running.low:
        return None
    return curve.slowdown(work if decoding is None else replace(work, running=min(work.running, decoding)), context)
