"""The command line: thin, every subcommand's work is done elsewhere."""

from __future__ import annotations


def main() -> int:
    """Run the command line; returns the exit code."""
    return 0
