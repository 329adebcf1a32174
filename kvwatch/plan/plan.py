"""A plan: the columns, what to set, and what to know about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvwatch.capacity.architecture import kv_layout
from kvwatch.plan.options import Option, Pool, Serving, hold, pool_what_ifs, serve, serving_what_ifs


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


def build_plan(
    subject: Serving | Pool,
    *,
    source: str,
    typical_tokens: float | None = None,
    max_num_seqs: int | None = None,
    notes: Sequence[str] = (),
) -> Plan:
    """The plan for a model to be served, or for a pool that exists.

    ``typical_tokens`` is the length of a usual request, prompt and output; ``max_num_seqs`` what is set now, to be judged.
    Raises `ValueError` with the reason when what is asked for cannot be served at all; a what-if that cannot says so in its column.
    """
    if typical_tokens is not None and typical_tokens < 1:
        raise ValueError("a typical request has at least 1 token")
    if isinstance(subject, Serving):
        first = serve("as given", subject, typical_tokens)
        others = tuple(_tried(name, other, typical_tokens) for name, other in serving_what_ifs(subject))
        layout = kv_layout(subject.model, kv_cache_dtype=subject.kv_cache_dtype, tensor_parallel_size=subject.gpus)
        said = (layout.kind, *layout.notes)
    else:
        first = hold("as it is", subject, typical_tokens)
        others = tuple(hold(name, other, typical_tokens) for name, other in pool_what_ifs(subject))
        said = ()
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


def _flags(subject: Serving | Pool, option: Option) -> tuple[str, ...]:
    flags = []
    if option.max_num_seqs:
        flags.append(f"--max-num-seqs {option.max_num_seqs}")
    if option.max_model_len is not None:
        flags.append(f"--max-model-len {option.max_model_len}")
    if isinstance(subject, Serving):
        if subject.kv_memory is None:
            flags.append(f"--gpu-memory-utilization {subject.utilization:g}")
        if subject.gpus > 1:
            flags.append(f"--tensor-parallel-size {subject.gpus}")
        if subject.kv_cache_dtype != "auto":
            flags.append(f"--kv-cache-dtype {subject.kv_cache_dtype}")
    return tuple(flags)


def _judged(option: Option, typical: float | None, max_num_seqs: int | None) -> tuple[str, ...]:
    """What the present ``--max-num-seqs`` wants of the pool, and what sizing by typical requests leaves open."""
    notes = []
    if max_num_seqs is not None and option.pool_tokens:
        tokens = typical if typical is not None else option.max_model_len
        if tokens is not None:
            wanted = max_num_seqs * tokens
            times = wanted / option.pool_tokens
            notes.append(f"{max_num_seqs} sequences of {tokens:.0f} tokens want {wanted:.0f} tokens, {times:.2f} times the pool")
    if typical is None:
        notes.append("sized by the longest request: give --typical-tokens (prompt and output) to size by the usual one")
    elif option.full_safe is not None and option.typical_safe is not None and option.full_safe < option.typical_safe:
        notes.append(f"sized by the usual request: {option.full_safe} would hold if every request had full length")
    if option.max_num_seqs == 0:
        notes.append("one sequence fits, but not with a fifth of the pool left free: no --max-num-seqs is recommended")
    return tuple(notes)
