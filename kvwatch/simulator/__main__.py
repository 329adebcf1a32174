"""``python -m kvwatch.simulator``: a vLLM to watch where there is none."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from kvwatch.clock import SystemClock
from kvwatch.errors import UsageError
from kvwatch.simulator.config import GPU_8B, PROFILES, Names, ServerConfig
from kvwatch.simulator.faults import Fault, parse_fault
from kvwatch.simulator.load import ClosedLoop, Load, OpenLoop, parse_lengths, read_arrivals
from kvwatch.simulator.server import SimulatorServer
from kvwatch.simulator.simulation import Simulation

_LENGTHS = "N, uniform:LOW,HIGH or logn:MEDIAN,SIGMA,LOW,HIGH tokens"


def build_parser() -> argparse.ArgumentParser:
    """The flags; those of vLLM by vLLM's names."""
    defaults = ServerConfig()
    parser = argparse.ArgumentParser(prog="python -m kvwatch.simulator", description="A simulated vLLM that serves /metrics.")
    add_server_flags(parser)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free one, printed at start")
    parser.add_argument("--profile", choices=sorted(PROFILES), default=GPU_8B.name, help="how long steps take (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same run")
    parser.add_argument("--speed", type=float, default=1.0, help="virtual seconds per real second")
    parser.add_argument("--engines", type=int, default=None, help="same as --data-parallel-size")
    parser.add_argument("--names", choices=[*Names], default=defaults.names, type=Names, help="whose metric names (default %(default)s)")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--rate", type=float, help="open loop: requests a second")
    load.add_argument("--concurrency", type=int, help="closed loop: clients (default 32)")
    load.add_argument("--arrivals", type=Path, help="CSV of timestamp,prompt_tokens,output_tokens")
    parser.add_argument("--burst", type=int, default=1, help="with --rate: requests that arrive together")
    parser.add_argument("--prompt", default="logn:800,0.7,16,6000", help=f"{_LENGTHS} (default %(default)s)")
    parser.add_argument("--output", default="logn:300,0.6,8,1500", help=f"{_LENGTHS} (default %(default)s)")
    parser.add_argument("--shared-prefix", type=int, default=0, help="leading prompt tokens all requests share")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="KIND@START[+DURATION]", help=f"repeatable; KIND is one of {', '.join(Fault)}"
    )
    parser.add_argument("--slow-seconds", type=float, default=8.0, help="how late a slow /metrics answers")
    return parser


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """The flags vLLM itself has, as recordings name them in their first line."""
    defaults = ServerConfig()
    for name in ("num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "data_parallel_size"):
        spellings = [f"--{name.replace('_', '-')}", *(["--num-gpu-blocks-override"] if name == "num_gpu_blocks" else [])]
        parser.add_argument(*spellings, type=int, default=getattr(defaults, name), help="(default %(default)s)")
    parser.add_argument("--served-model-name", dest="model_name", default=defaults.model_name, help="(default %(default)s)")
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=defaults.enable_prefix_caching)
    parser.add_argument(
        "--watermark", type=float, default=defaults.watermark, help="share of the blocks kept free by admission (default %(default)s)"
    )
    parser.add_argument("--enable-mfu-metrics", action="store_true")
    parser.add_argument("--disable-log-stats", action="store_true", help="no vllm: series at all")


def server_config(arguments: argparse.Namespace, names: Names = Names.CURRENT) -> ServerConfig:
    """The configuration these flags ask for. Raises `UsageError`."""
    flags = {field.name: getattr(arguments, field.name) for field in fields(ServerConfig) if field.name != "names"}
    return ServerConfig(names=names, **flags)


def load_from(arguments: argparse.Namespace) -> Load:
    """The load these flags ask for. Raises `UsageError`."""
    if arguments.arrivals is not None:
        return read_arrivals(arguments.arrivals)
    prompt, output = parse_lengths(arguments.prompt), parse_lengths(arguments.output)
    if arguments.shared_prefix < 0:
        raise UsageError(f"--shared-prefix must not be negative: {arguments.shared_prefix}")
    if arguments.rate is not None:
        if arguments.rate < 0 or arguments.burst < 1:
            raise UsageError(f"--rate must not be negative and --burst at least 1: {arguments.rate} and {arguments.burst}")
        return OpenLoop(arguments.rate, prompt, output, burst=arguments.burst, shared_prefix=arguments.shared_prefix)
    concurrency = 32 if arguments.concurrency is None else arguments.concurrency
    if concurrency < 1:
        raise UsageError(f"--concurrency must be at least 1: {concurrency}")
    return ClosedLoop(concurrency, prompt, output, shared_prefix=arguments.shared_prefix)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; 2 when the flags make no sense or the port is taken."""
    arguments = build_parser().parse_args(argv)
    if arguments.engines is not None:
        arguments.data_parallel_size = arguments.engines
    clock = SystemClock()
    stop = threading.Event()
    try:
        simulation = Simulation(
            server_config(arguments, arguments.names),
            load_from(arguments),
            profile=PROFILES[arguments.profile],
            seed=arguments.seed,
            start_unix=clock.unix(),
        )
        server = SimulatorServer(
            simulation,
            host=arguments.host,
            port=arguments.port,
            speed=arguments.speed,
            slow_seconds=arguments.slow_seconds,
            faults=tuple(parse_fault(spec) for spec in arguments.fault),
            clock=clock,
        )
    except UsageError as error:
        sys.stderr.write(f"simulator: {error}\n")
        return 2
    except (OSError, OverflowError) as error:
        sys.stderr.write(f"simulator: cannot listen on {arguments.host}:{arguments.port}: {error}\n")
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
