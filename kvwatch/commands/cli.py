"""The command line: thin, every subcommand's work is done elsewhere. Errors are one line on standard error and exit code 2 (check: 3)."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Final, NoReturn

from kvwatch import __version__
from kvwatch.errors import ConfigError, KVWatchError, UsageError
from kvwatch.text import one_line

_USAGE_ERROR: Final = 2
_USAGE_ERRORS: Final = {"check": 3}
"""Commands whose 2 is a verdict: as in Nagios plugins, 3 says that there is none."""
_BROKEN_PIPE: Final = 141
"""What a shell reports of a program that SIGPIPE ended."""
_INTERRUPTED: Final = 130

COMMANDS: Final = {
    "run": ("kvwatch.commands.run", "watch vLLM and serve what holds it back"),
    "alert-test": ("kvwatch.commands.alert_test", "send a test alert through the configured Alertmanagers"),
    "demo": ("kvwatch.commands.demo", "watch a simulated vLLM run out of KV cache"),
    "check": ("kvwatch.commands.check", "one diagnosis of a live server"),
    "record": ("kvwatch.commands.record", "record raw scrapes"),
    "replay": ("kvwatch.commands.replay", "the classifier over a recording"),
    "snapshot": ("kvwatch.commands.snapshot", "the five lines of a run: throughput, preemption ratio, latencies"),
    "compare": ("kvwatch.commands.compare", "a candidate run against its base, or the knee of a ladder"),
    "plan": ("kvwatch.commands.plan", "how many sequences a KV cache holds, and what to set"),
}
"""Name -> its module and what it does in a few words.

A module has ``DESCRIPTION``, ``EPILOG`` where it shows examples, and ``add_arguments(parser)``, which sets ``run`` to a function of the
parsed arguments that returns the exit code.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    _open_standard_streams()
    _leave_vllm_metrics_alone()
    arguments = sys.argv[1:] if arguments is None else arguments
    command = _command(arguments)
    usage_error = _USAGE_ERRORS.get(command or "", _USAGE_ERROR)
    try:
        with _hang_up_held_back() if command == "run" else contextlib.nullcontext():
            parsed = _parser(command).parse_args(arguments)
            code: int = parsed.run(parsed)
        sys.stdout.flush()
    except ConfigError as error:
        for line in error.errors:
            _complain(line)
        return usage_error
    except KVWatchError as error:
        _complain(str(error))
        return usage_error
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains again when it flushes
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error is said; argparse prints its usage too."""

    def error(self, message: str) -> NoReturn:
        """Raise it."""
        raise UsageError(f"{one_line(message)} ({self.prog} --help says what there is)")


def _command(arguments: Sequence[str]) -> str | None:
    return next((argument for argument in arguments if not argument.startswith("-")), None)


def _parser(asked_for: str | None) -> argparse.ArgumentParser:
    """The parser, complete for the command that is asked for.

    The daemon need not carry what only the demo or the planner uses, so a command's module is imported when its name is called.
    """
    parser = _Parser(
        prog="kvwatch",
        description="Says what holds a vLLM server back: the KV cache, the compute side, or nothing; and what to do about it.",
    )
    parser.add_argument("--version", action="version", version=f"kvwatch {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = subparsers.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == asked_for:
            found = import_module(module)
            command.description, command.epilog = found.DESCRIPTION, getattr(found, "EPILOG", None)
            found.add_arguments(command)
    return parser


@contextlib.contextmanager
def _hang_up_held_back() -> Iterator[None]:
    """Have SIGHUP wait until the daemon takes it, to reload: while it starts, it would end the process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open_standard_streams() -> None:
    """Put /dev/null where a standard stream is closed: else the next socket would take its number, and errors be written into it."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "r" if descriptor == 0 else "w", closefd=False, encoding="utf-8"))  # noqa: SIM115


def _leave_vllm_metrics_alone() -> None:
    """Forget PROMETHEUS_MULTIPROC_DIR, which a sidecar may inherit from vLLM's environment.

    prometheus_client would write our metrics into that directory, that is into vLLM's own /metrics.
    """
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        if os.environ.pop(name, None) is not None:
            _complain(f"{name} is set and ignored: it belongs to vLLM, whose metrics kvwatch must not write into")


def _complain(what: str) -> None:
    with contextlib.suppress(OSError):  # a disk that is full or a reader that is gone
        print(f"kvwatch: {what}", file=sys.stderr, flush=True)
