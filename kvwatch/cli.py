"""The command line: thin, every subcommand's work is done elsewhere. Errors are one line on standard error and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from kvwatch import __version__
from kvwatch.errors import ConfigError, KVWatchError

_USAGE_ERROR: Final = 2
_BROKEN_PIPE: Final = 141
"""What a shell reports of a program that SIGPIPE ended."""
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    _leave_vllm_metrics_alone()
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except ConfigError as fault:
        for line in fault.faults:
            _complain(line)
        return _USAGE_ERROR
    except KVWatchError as fault:
        _complain(str(fault))
        return _USAGE_ERROR
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains again when it flushes
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    # Here, because prometheus_client reads PROMETHEUS_MULTIPROC_DIR when it is imported.
    from kvwatch import run_command  # noqa: PLC0415
    from kvwatch.check import command as check_command  # noqa: PLC0415
    from kvwatch.incident import record_command, replay_command  # noqa: PLC0415
    from kvwatch.plan import command as plan_command  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        prog="kvwatch",
        description="Says what holds a vLLM server back: the KV cache, the compute side, or nothing; and what to do about it.",
    )
    parser.add_argument("--version", action="version", version=f"kvwatch {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (run_command, check_command, record_command, replay_command, plan_command):
        command.add_parser(subparsers)
    return parser


def _leave_vllm_metrics_alone() -> None:
    """Forget PROMETHEUS_MULTIPROC_DIR, which a sidecar may inherit from vLLM's environment.

    prometheus_client would write our metrics into that directory, that is into vLLM's own /metrics.
    """
    if os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None) is not None:
        _complain("PROMETHEUS_MULTIPROC_DIR is set and ignored: it belongs to vLLM, whose metrics kvwatch must not write into")


def _complain(what: str) -> None:
    print(f"kvwatch: {what}", file=sys.stderr)
