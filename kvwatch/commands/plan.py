"""``kvwatch plan``: its arguments, and what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from kvwatch.assess import Judge
from kvwatch.capacity.kv_dtype import KV_DTYPES
from kvwatch.capacity.startup_log import StartupLog
from kvwatch.check.watching import Watch, watch
from kvwatch.commands.arguments import duration, one_metrics_url, positive_count
from kvwatch.commands.check import USUAL_SECONDS
from kvwatch.commands.outside import OUTSIDE, Outside
from kvwatch.commands.progress import last_report
from kvwatch.config.policy import KnownConfig
from kvwatch.config.sources import load
from kvwatch.errors import UsageError
from kvwatch.model import Assessment
from kvwatch.plan.options import ACTIVATIONS, OTHER, UTILIZATION
from kvwatch.plan.plan import Plan, build_plan
from kvwatch.plan.render import render, render_json, render_plain
from kvwatch.plan.sizes import parse_size
from kvwatch.plan.sources import Live, class_defaults, read_config, read_log, scrape_live
from kvwatch.plan.subject import Given, pool_of, refuse_failed_start, serving_of
from kvwatch.plan.usual_request import UsualRequest, usual_request
from kvwatch.poller.fetch import Fetch, fetch
from kvwatch.text import number

_TIMEOUT: Final = 10.0
_MAX_BODY_BYTES: Final = 16 * 2**20
_INTERVAL: Final = 1.0
"""Seconds between the scrapes of a live server."""
Watched = tuple[Assessment, ...]

DESCRIPTION: Final = "KV arithmetic and a recommended --max-num-seqs: from a model's config.json,\na live server or a startup log."
EPILOG: Final = """\
examples:
  kvwatch plan --config config.json --gpu-memory 24GiB --weights 14GiB --max-model-len 4096
  kvwatch plan --url http://127.0.0.1:8000/metrics
  kvwatch plan --log vllm.log --typical-tokens 1200
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvwatch plan``."""
    parser.set_defaults(run=run)
    facts = parser.add_argument_group("where the facts come from")
    facts.add_argument("--config", type=Path, metavar="FILE", help="the model's config.json, or the directory it lies in")
    facts.add_argument("--url", metavar="URL", help="a live server's /metrics")
    facts.add_argument(
        "--for",
        dest="seconds",
        type=duration,
        default=USUAL_SECONDS,
        metavar="DURATION",
        help="how long to watch it (15s; 0s: one scrape)",
    )
    facts.add_argument("--log", type=Path, metavar="FILE", help="a vLLM startup log")
    memory = parser.add_argument_group("memory, for --config")
    memory.add_argument("--gpu-memory", type=_size, metavar="SIZE", help="of one GPU, e.g. 24GiB or 80GB")
    memory.add_argument("--gpu-memory-utilization", type=float, default=UTILIZATION, metavar="SHARE", help="default: %(default)s")
    memory.add_argument("--weights", type=_size, metavar="SIZE", help="of the whole model; computed for plain Llama-like models")
    memory.add_argument("--activations", type=_size, default=ACTIVATIONS, metavar="SIZE", help="activations and CUDA graphs (2GiB)")
    memory.add_argument("--other", type=_size, default=OTHER, metavar="SIZE", help="fragmentation and CUDA context (1GiB)")
    memory.add_argument("--kv-cache-memory", type=_size, metavar="SIZE", help="what one GPU has for KV, instead of computing it")
    serving = parser.add_argument_group("serving")
    serving.add_argument("--tensor-parallel-size", "-tp", type=positive_count, metavar="N", help="GPUs of one stage (default: 1)")
    serving.add_argument("--pipeline-parallel-size", "-pp", type=positive_count, metavar="N", help="stages of one replica (default: 1)")
    serving.add_argument("--kv-cache-dtype", metavar="TYPE", help=f"one of {', '.join(KV_DTYPES)} (default: auto)")
    serving.add_argument("--block-size", type=positive_count, metavar="N", help="tokens of a block (default: that of the version)")
    serving.add_argument("--max-num-batched-tokens", type=positive_count, metavar="N", help="what layers with a window reserve besides")
    serving.add_argument("--vllm-version", metavar="X.Y.Z", help="default: what the log says, else the newest known")
    serving.add_argument("--max-model-len", type=positive_count, metavar="N", help="default: what the source says")
    serving.add_argument("--max-num-seqs", type=positive_count, metavar="N", help="what is set now, to be judged")
    serving.add_argument("--typical-tokens", type=positive_count, metavar="N", help="prompt and output of a usual request")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace, outside: Outside = OUTSIDE) -> int:
    """Print the plan; returns 0. Raises `UsageError` where it cannot be made."""
    get = outside.fetch or partial(fetch, deadline=_TIMEOUT, max_bytes=_MAX_BODY_BYTES, clock=outside.clock)
    try:
        plan = plan_for(args, get, partial(_watch, args, get, outside))
    except ValueError as error:
        raise UsageError(str(error)) from None
    outside.show(args.format, as_json=lambda: render_json(plan), as_text=lambda: render_plain(plan), drawn=lambda _width: render(plan))
    return 0


def _watch(args: argparse.Namespace, get: Fetch, outside: Outside, log: StartupLog | None) -> Watched:
    """The last word on each engine of the server after it was watched as `kvwatch check` does; empty where it is not to be."""
    if not args.seconds:
        return ()
    settings = load()
    given = KnownConfig(**{name: getattr(args, name, None) for name in KnownConfig.model_fields})
    known = KnownConfig.first_of(given, log.known if log is not None else KnownConfig(), settings.vllm)
    how = Watch(one_metrics_url(args.url), get, outside.clock, outside.wait, _INTERVAL, args.seconds)
    report = last_report(watch(how, Judge(settings.policy, known, _INTERVAL), known), args.seconds, args.format)
    return () if report is None else report.assessments


def plan_for(args: argparse.Namespace, get: Fetch, watched: Callable[[StartupLog | None], Watched]) -> Plan:
    """The plan the arguments ask for; raises `ValueError` or `UsageError` with the reason where it cannot be made."""
    if args.config is None and args.url is None and args.log is None:
        raise UsageError("nothing to plan for: give --config FILE, --url URL or --log FILE")
    log = read_log(args.log) if args.log is not None else None
    live = scrape_live(one_metrics_url(args.url), get, log.known if log is not None else KnownConfig()) if args.url is not None else None
    usual = usual_request(live, watched(log)) if live is not None and args.typical_tokens is None else None
    typical: float | None = usual.tokens if usual is not None else args.typical_tokens
    max_num_seqs: int | None = args.max_num_seqs
    if max_num_seqs is None and log is not None:
        max_num_seqs = log.max_num_seqs
    given = _given(args)
    refuse_failed_start(given, log, config=args.config is not None)
    if args.config is None:
        return build_plan(
            pool_of(given, log, live),
            source=_source(args),
            typical_tokens=typical,
            max_num_seqs=max_num_seqs,
            fits=None if usual is None else usual.fits,
            notes=_notes(args, log, live, usual),
        )
    serving = serving_of(read_config(args.config), class_defaults(), given, log, live)
    notes = _notes(args, log, live, usual)
    return build_plan(serving, source=_source(args), typical_tokens=typical, max_num_seqs=max_num_seqs, notes=notes)


def _given(args: argparse.Namespace) -> Given:
    return Given(
        version=args.vllm_version,
        gpus=args.tensor_parallel_size,
        stages=args.pipeline_parallel_size,
        kv_dtype=args.kv_cache_dtype,
        block_size=args.block_size,
        batched_tokens=args.max_num_batched_tokens,
        max_model_len=args.max_model_len,
        gpu_memory=args.gpu_memory,
        utilization=args.gpu_memory_utilization,
        weights=args.weights,
        activations=args.activations,
        other=args.other,
        kv_memory=args.kv_cache_memory,
    )


def _notes(args: argparse.Namespace, log: StartupLog | None, live: Live | None, usual: UsualRequest | None) -> list[str]:
    notes = []
    if live is not None and live.engines > 1:
        notes.append(f"{live.engines} engines; this is one of them, with the smallest pool")
    if usual is not None:
        notes.append(f"a usual request has {number(usual.tokens)} tokens: {usual.source}")
    if live is not None and log is None and args.config is not None and args.max_num_batched_tokens is None:
        notes.append("--max-num-batched-tokens is taken to be vLLM's default of 2048: give it where layers have a window and it is another")
    if live is not None and live.pool.at_most and args.config is None and log is None:
        notes.append(
            "upper bound: this vLLM's page shows blocks only, and the pool is right where all layers are of one kind (or give --config)"
        )
    if log is not None and log.printed_tokens is not None:
        notes.append(
            f"the log's {number(log.printed_tokens)} tokens are no capacity: several kinds of layers share them; vLLM's concurrency is"
        )
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
