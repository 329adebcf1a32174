"""A plan: the columns, what to set, and what to know about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvwatch.capacity.concurrency import ConcurrencyLimit
from kvwatch.capacity.model import Attention, Latent
from kvwatch.plan.options import Option, Pool, Serving, hold, serve
from kvwatch.plan.what_ifs import pool_what_ifs, serving_what_ifs
from kvwatch.text import counted


@dataclass(frozen=True, slots=True)
class Plan:
    """What `build_plan` found: the first option is the one asked for, the others change one thing each."""

    source: str
    """What was planned for, in words."""
    options: tuple[Option, ...]
    flags: tuple[str, ...]
    """Recommended flags, as ``vllm serve`` takes them."""
    typical_tokens: float | None
    notes: tuple[str, ...]

    @property
    def command(self) -> str:
        """The recommended command line."""
        return " ".join(["vllm serve MODEL", *self.flags])


def build_plan(
    subject: Serving | Pool,
    *,
    source: str,
    typical_tokens: float | None = None,
    max_num_seqs: int | None = None,
    fits: ConcurrencyLimit | None = None,
    notes: Sequence[str] = (),
) -> Plan:
    """The plan for a model to be served, or for a pool that exists.

    ``typical_tokens`` is the length of a usual request, prompt and output; ``max_num_seqs`` what is set now, to be judged;
    ``fits`` how many usual requests a running server was seen to hold, which goes before the arithmetic of its pool.
    Raises `ValueError` with the reason when what is asked for cannot be served at all; a what-if that cannot says so in its column.
    """
    if typical_tokens is not None and typical_tokens < 1:
        raise ValueError("a typical request has at least 1 token")
    if isinstance(subject, Serving):
        first = serve("as given", subject, typical_tokens)
        others = tuple(_tried(name, other, typical_tokens) for name, other in serving_what_ifs(subject))
        said = (*_bounds(subject), subject.model.kind, *subject.model.notes, *_windows(subject))
    else:
        first = hold("as it is", subject, typical_tokens, fits)
        others = tuple(hold(name, other, typical_tokens) for name, other in pool_what_ifs(subject))
        said = (*_several_kinds(subject, typical_tokens), *_counted(fits))
    return Plan(
        source=source,
        options=(first, *others),
        flags=_flags(subject, first),
        typical_tokens=typical_tokens,
        notes=(*said, *notes, *_judged(first, typical_tokens, max_num_seqs)),
    )


def _tried(name: str, serving: Serving, typical: float | None) -> Option:
    try:
        return serve(name, serving, typical)
    except ValueError as error:
        return Option(name=name, max_model_len=serving.max_model_len, impossible=str(error))


def _bounds(serving: Serving) -> tuple[str, ...]:
    """What is not understood of the model, and on which side of the truth that leaves the numbers."""
    return tuple(
        f"upper bound of the bytes: kvwatch does not know {reason}; what is counted as full attention may keep less"
        for reason in serving.model.unknown
    )


def _windows(serving: Serving) -> tuple[str, ...]:
    """What vLLM reserves for windows beyond what they hold while decoding, where the step budget is not known."""
    bounded = [cache for cache in serving.model.caches if isinstance(cache, (Attention, Latent)) and cache.window]
    if not bounded or serving.server.batched_tokens is not None:
        return ()
    return ("layers with a window are counted at it; vLLM's own count reserves --max-num-batched-tokens more: give that flag for it",)


def _several_kinds(pool: Pool, typical: float | None) -> tuple[str, ...]:
    if not pool.several_kinds:
        return ()
    if pool.shape is not None:
        return (f"each request takes {pool.shape.fixed} of {pool.shape.blocks} blocks whatever its length, so shorter ones save less",)
    if typical is None:
        return ("layers of several kinds share this pool: only the longest request can be counted; give --config for other lengths",)
    return ("layers of several kinds share this pool: shorter requests are counted like the longest, a lower bound (or give --config)",)


def _counted(fits: ConcurrencyLimit | None) -> tuple[str, ...]:
    return () if fits is None else (f"it holds {counted(fits.sequences, 'usual request')}: {fits.arithmetic}",)


def _flags(subject: Serving | Pool, option: Option) -> tuple[str, ...]:
    flags = []
    if option.max_num_seqs:
        flags.append(f"--max-num-seqs {option.max_num_seqs}")
    if option.max_model_len is not None:
        flags.append(f"--max-model-len {option.longest_that_starts or option.max_model_len}")
    if isinstance(subject, Serving):
        server = subject.server
        if subject.kv_memory is None and subject.blocks is None:
            flags.append(f"--gpu-memory-utilization {subject.utilization:g}")
        if server.gpus > 1:
            flags.append(f"--tensor-parallel-size {server.gpus}")
        if server.stages > 1:
            flags.append(f"--pipeline-parallel-size {server.stages}")
        if server.kv_dtype != "auto":
            flags.append(f"--kv-cache-dtype {server.kv_dtype}")
    return tuple(flags)


def _judged(option: Option, typical: float | None, max_num_seqs: int | None) -> tuple[str, ...]:
    """What the present ``--max-num-seqs`` wants of the pool, and what sizing by typical requests leaves open."""
    notes = []
    if option.longest_that_starts is not None:
        notes.append(
            f"its own {option.max_model_len} tokens do not fit; --max-model-len {option.longest_that_starts} is the most that starts"
        )
    fits = option.typical_sequences if typical is not None else option.full_sequences
    tokens = typical if typical is not None else option.max_model_len
    if max_num_seqs is not None and fits and tokens is not None:
        notes.append(f"{max_num_seqs} sequences of {tokens:.0f} tokens want {max_num_seqs / fits:.2f} times the pool: {fits} fit")
    if typical is None:
        notes.append("give --typical-tokens (prompt and output) to get --max-num-seqs; the table says what fits at which length")
    elif option.full_sequences is not None and option.typical_sequences is not None and option.full_sequences < option.typical_sequences:
        notes.append(f"sized by the usual request: {option.full_sequences} would fit if every request had full length")
    if typical is not None and option.typical_sequences == 0:
        notes.append("not even one usual request fits: no --max-num-seqs helps")
    return tuple(notes)
