"""Why a vLLM server did not start, as its log says it, and the largest value of the flag that would have. Pure: a line in, a fact out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvwatch.capacity.pool_line import count

_BLOCK: Final = 16
"""Tokens of a block where nobody says: an estimate made here is rounded down to whole ones."""


@dataclass(frozen=True, slots=True)
class StartupFailure:
    """One reason."""

    reason: str
    remedy: str | None = None
    """The flag that would start it, as ``vllm serve`` takes it, or what else helps."""
    max_model_len: int | None = None
    """The length it tried to serve."""
    estimated_max_model_len: int | None = None
    """The longest that starts: vLLM's own estimate, or worked out from the sizes it prints."""
    only_while_starting: bool = False
    """A running server may write such a line too; it is no failed start once the server serves."""


Reader = Callable[[re.Match[str]], StartupFailure]


def read_failure(line: str) -> StartupFailure | None:
    """The reason in this line of a log; ``None`` where it names none."""
    return next((read(found) for pattern, read in _READERS if (found := pattern.search(line))), None)


def read_error(line: str) -> StartupFailure | None:
    """Any exception this line ends a traceback with: the reason where the log names no other."""
    found = _EXCEPTION.search(line)
    return StartupFailure(f"{found['kind']}: {found['says'][:_LONGEST_REASON].strip()}") if found else None


def _too_long(found: re.Match[str]) -> StartupFailure:
    length = count(found["length"])
    line = found.string
    estimate = _ESTIMATE.search(line)
    sizes = _SIZES.search(line)
    longest: int | None = None
    if estimate:
        longest = count(estimate["length"])
    elif sizes and 0 < float(sizes["available"]) < float(sizes["needed"]):
        longest = int(length * float(sizes["available"]) / float(sizes["needed"])) // _BLOCK * _BLOCK
    return _length_failure(f"not even one request of {length} tokens fits the KV cache", length, longest)


def _too_long_in_blocks(found: re.Match[str]) -> StartupFailure:
    length, longest = count(found["length"]), count(found["longest"])
    return _length_failure(f"not even one request of {length} tokens fits the KV cache ({longest} tokens)", length, longest)


def _length_failure(reason: str, length: int | None, longest: int | None) -> StartupFailure:
    remedy = f"--max-model-len {longest} would start" if longest else "less memory for weights or more for the KV cache"
    return StartupFailure(reason, remedy, length, longest)


def _mamba_blocks(found: re.Match[str]) -> StartupFailure:
    wanted, blocks = count(found["wanted"]), count(found["blocks"])
    return StartupFailure(
        f"--max-num-seqs {wanted} is more than the {blocks} Mamba cache blocks there are", f"--max-num-seqs {blocks} would start"
    )


def _derived(found: re.Match[str]) -> StartupFailure:
    length, limit = count(found["length"]), int(float(found["limit"]))
    return StartupFailure(
        f"--max-model-len {length} is more than the derived max_model_len of the model's config, {limit}",
        f"--max-model-len {limit} would start",
        length,
        limit,
    )


def _says(reason: str, remedy: str | None, *, only_while_starting: bool = False) -> Reader:
    return lambda _found: StartupFailure(reason, remedy, only_while_starting=only_while_starting)


_LONGEST_REASON: Final = 200
"""Characters of an exception's text that are repeated."""
_EXCEPTION: Final = re.compile(r"(?:^|[\s)\]])(?:[a-z_]\w*\.)*(?P<kind>[A-Z]\w*(?:Error|Exception)): (?P<says>\S.*)")
_ESTIMATE: Final = re.compile(r"estimated maximum model length is (?P<length>[\d,]+)")
_SIZES: Final = re.compile(r"\(?(?P<needed>[\d.]+) GiB KV cache is needed.*?available KV cache memory \((?P<available>[\d.]+) GiB\)")
_NO_LENGTH_HELPS: Final = "no --max-model-len helps: raise --gpu-memory-utilization, use more GPUs, or fewer bits for the weights"
_READERS: Final[tuple[tuple[re.Pattern[str], Reader], ...]] = (
    (re.compile(r"No available memory for the cache blocks"), _says("no memory was left for KV blocks", _NO_LENGTH_HELPS)),
    (
        re.compile(r"max seq len \((?P<length>[\d,]+)\) is larger than the maximum number of tokens.*?\((?P<longest>[\d,]+)\)", re.DOTALL),
        _too_long_in_blocks,
    ),
    (re.compile(r"To serve at least one request with the model'?s'?s? max seq len \((?P<length>[\d,]+)\)"), _too_long),
    (
        re.compile(
            r"max_num_seqs \((?P<wanted>[\d,]+)\) exceeds (?:the )?(?:number of )?available Mamba cache blocks \((?P<blocks>[\d,]+)\)"
        ),
        _mamba_blocks,
    ),
    (re.compile(r"Cannot auto-fit max_model_len"), _says("not enough memory for a request of any length (auto-fit)", _NO_LENGTH_HELPS)),
    (
        re.compile(r"Free memory on device.*?is less than desired GPU memory utilization"),
        _says("the free memory on the card is less than what was asked for: another process holds it", "end that process, or ask for less"),
    ),
    (
        re.compile(
            r"User-specified max_model_len \((?P<length>[\d,]+)\) is greater than the derived max_model_len \(\w[\w.]*=(?P<limit>[\d.]+)"
        ),
        _derived,
    ),
    (
        re.compile(r"failed to convert the KV cache specs to one unified type|Failed to promote local KV cache specs"),
        _says("the model mixes kinds of layers that need the hybrid KV cache manager, and it is off", "do not disable the hybrid manager"),
    ),
    (
        re.compile(r"max_num_batched_tokens \((?P<batched>\d+)\) is smaller than max_model_len \((?P<length>\d+)\)"),
        lambda found: StartupFailure(
            f"--max-num-batched-tokens {found['batched']} is smaller than --max-model-len {found['length']} without chunked prefill",
            f"--max-num-batched-tokens {found['length']} would pass, or --enable-chunked-prefill",
        ),
    ),
    (
        re.compile(r"(?:CUDA|HIP|XPU)?\s?(?:OutOfMemoryError|out of memory)"),
        _says("it ran out of memory on the GPU while it started", _NO_LENGTH_HELPS, only_while_starting=True),
    ),
    (
        re.compile(
            r"Engine core initialization failed|Engine process failed to start|EngineCore failed to start|WorkerProc initialization failed"
        ),
        _says("the engine failed while it started; the root cause stands above this line", None, only_while_starting=True),
    ),
)
