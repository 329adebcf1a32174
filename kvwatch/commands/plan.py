"""``kvwatch plan``: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from rich.console import Console

from kvwatch.capacity.architecture import KV_DTYPES, kv_layout
from kvwatch.capacity.startup_log import StartupLog
from kvwatch.capacity.weights import weight_bytes
from kvwatch.clock import SystemClock
from kvwatch.commands.arguments import one_metrics_url, positive_count
from kvwatch.config.policy import KnownConfig
from kvwatch.errors import UsageError
from kvwatch.plan.options import ACTIVATIONS, OTHER, UTILIZATION, Pool, Serving
from kvwatch.plan.plan import Plan, build_plan
from kvwatch.plan.render import render, render_json, render_plain
from kvwatch.plan.sizes import parse_size
from kvwatch.plan.sources import Fetch, Live, longest, read_config, read_log, scrape_live
from kvwatch.poller.fetch import fetch
from kvwatch.text import number

if TYPE_CHECKING:
    from kvwatch.commands.arguments import Subparsers

_TIMEOUT: Final = 10.0
_MAX_BODY_BYTES: Final = 16 * 2**20
_EPILOG: Final = """\
examples:
  kvwatch plan --config config.json --gpu-memory 24GiB --weights 14GiB --max-model-len 4096
  kvwatch plan --url http://127.0.0.1:8000/metrics
  kvwatch plan --log vllm.log --typical-tokens 1200
"""


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``plan`` to the command line."""
    parser = subparsers.add_parser(
        "plan",
        help=summary,
        description="KV arithmetic and a recommended --max-num-seqs: from a model's config.json, a live server or a startup log.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvwatch plan``."""
    facts = parser.add_argument_group("where the facts come from")
    facts.add_argument("--config", type=Path, metavar="FILE", help="the model's config.json, or the directory it lies in")
    facts.add_argument("--url", metavar="URL", help="a live server's /metrics")
    facts.add_argument("--log", type=Path, metavar="FILE", help="a vLLM startup log")
    memory = parser.add_argument_group("memory, for --config")
    memory.add_argument("--gpu-memory", type=_size, metavar="SIZE", help="of one GPU, e.g. 24GiB or 80GB")
    memory.add_argument("--gpu-memory-utilization", type=float, default=UTILIZATION, metavar="SHARE", help="default: %(default)s")
    memory.add_argument("--weights", type=_size, metavar="SIZE", help="of the whole model; computed for plain Llama-like models")
    memory.add_argument("--activations", type=_size, default=ACTIVATIONS, metavar="SIZE", help="activations and CUDA graphs (2GiB)")
    memory.add_argument("--other", type=_size, default=OTHER, metavar="SIZE", help="fragmentation and CUDA context (1GiB)")
    memory.add_argument("--kv-cache-memory", type=_size, metavar="SIZE", help="what one GPU has for KV, instead of computing it")
    serving = parser.add_argument_group("serving")
    serving.add_argument("--tensor-parallel-size", "-tp", type=positive_count, default=1, metavar="N", help="GPUs of one replica")
    serving.add_argument("--kv-cache-dtype", default="auto", metavar="TYPE", help=f"one of {', '.join(KV_DTYPES)}")
    serving.add_argument("--max-model-len", type=positive_count, metavar="N", help="default: what the source says")
    serving.add_argument("--max-num-seqs", type=positive_count, metavar="N", help="what is set now, to be judged")
    serving.add_argument("--typical-tokens", type=positive_count, metavar="N", help="prompt and output of a usual request")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace, *, get: Fetch | None = None, out: TextIO | None = None) -> int:
    """Print the plan; returns 0. Raises `UsageError` where it cannot be made. *get* and *out* are for tests."""
    out = out if out is not None else sys.stdout
    try:
        plan = plan_for(args, get or partial(fetch, deadline=_TIMEOUT, max_bytes=_MAX_BODY_BYTES, clock=SystemClock()))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.format == "json":
        out.write(render_json(plan) + "\n")
    elif out.isatty():
        Console(file=out).print(render(plan))
    else:
        out.write(render_plain(plan) + "\n")
    return 0


def plan_for(args: argparse.Namespace, get: Fetch) -> Plan:
    """The plan the arguments ask for; raises `ValueError` or `UsageError` with the reason where it cannot be made."""
    if args.config is None and args.url is None and args.log is None:
        raise UsageError("nothing to plan for: give --config FILE, --url URL or --log FILE")
    log = read_log(args.log) if args.log is not None else None
    live = scrape_live(one_metrics_url(args.url), get, log.known if log is not None else KnownConfig()) if args.url is not None else None
    typical: float | None = args.typical_tokens
    if typical is None and live is not None:
        typical = live.typical_tokens
    max_num_seqs: int | None = args.max_num_seqs
    if max_num_seqs is None and log is not None:
        max_num_seqs = log.max_num_seqs
    notes = _notes(args, log, live)
    subject = _pool(args, log, live) if args.config is None else _serving(args, log, live)
    return build_plan(
        subject,
        source=_source(args),
        typical_tokens=typical,
        max_num_seqs=max_num_seqs,
        notes=notes,
    )


def _pool(args: argparse.Namespace, log: StartupLog | None, live: Live | None) -> Pool:
    """The pool that is served now; the live server's word goes before the log's."""
    if live is not None:
        length = args.max_model_len or live.pool.max_model_len
        return Pool(live.pool.tokens, length, live.pool.kv_cache_dtype)
    assert log is not None  # noqa: S101 - one of the three sources is given
    if log.kv_cache_tokens is None:
        hint = f"; vLLM estimates that --max-model-len {log.estimated_max_model_len} would fit" if log.estimated_max_model_len else ""
        raise UsageError(f"the server of this log did not start: {log.failure}{hint}")
    return Pool(log.kv_cache_tokens, args.max_model_len or log.max_model_len, log.kv_cache_dtype)


def _serving(args: argparse.Namespace, log: StartupLog | None, live: Live | None) -> Serving:
    """The model as it would be served; what runs now says how much memory there is for KV."""
    model = read_config(args.config)
    length = args.max_model_len or _served_length(log, live) or longest(model)
    if length is None:
        raise UsageError("this config does not say how long a sequence may be: give --max-model-len N")
    weights = args.weights if args.weights is not None else weight_bytes(model)
    if weights is None and log is not None and log.weights is not None:
        weights = log.weights * args.tensor_parallel_size
    kv_memory = args.kv_cache_memory
    if kv_memory is None and args.gpu_memory is None:
        kv_memory = _memory_of_pool(args, model, log, live)
    return Serving(
        model=model,
        max_model_len=length,
        kv_cache_dtype=args.kv_cache_dtype,
        gpus=args.tensor_parallel_size,
        gpu_memory=args.gpu_memory,
        utilization=args.gpu_memory_utilization,
        weights=weights,
        activations=args.activations,
        other=args.other,
        kv_memory=kv_memory,
    )


def _memory_of_pool(args: argparse.Namespace, model: Mapping[str, object], log: StartupLog | None, live: Live | None) -> int | None:
    """Bytes of one GPU that hold the pool that is served now."""
    if log is not None and log.kv_memory is not None:
        return log.kv_memory
    tokens = live.pool.tokens if live is not None else log.kv_cache_tokens if log is not None else None
    served = _served_length(log, live)
    if tokens is None or served is None:
        return None
    layout = kv_layout(model, kv_cache_dtype=args.kv_cache_dtype, tensor_parallel_size=args.tensor_parallel_size)
    return round(tokens / served * layout.sequence_bytes(served))


def _served_length(log: StartupLog | None, live: Live | None) -> int | None:
    if live is not None and live.pool.max_model_len is not None:
        return live.pool.max_model_len
    return None if log is None else log.max_model_len


def _notes(args: argparse.Namespace, log: StartupLog | None, live: Live | None) -> list[str]:
    notes = []
    if live is not None and live.engines > 1:
        notes.append(f"{live.engines} engines; this is one of them, with the smallest pool")
    if live is not None and live.typical_tokens is not None and args.typical_tokens is None:
        notes.append(f"a usual request has {number(live.typical_tokens)} tokens: mean of all that finished since the server started")
    if log is not None and log.max_concurrency is not None:
        notes.append(f"vLLM's own count: {log.max_concurrency:g} sequences of {log.max_model_len} tokens")
    return notes


def _source(args: argparse.Namespace) -> str:
    parts = [str(given) for given in (args.config, args.log, args.url) if given is not None]
    return f"KV cache plan for {' and '.join(parts)}"


def _size(text: str) -> int:
    """Bytes, for ``type=``: argparse shows the text of its own error type only."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
