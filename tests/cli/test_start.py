"""What the command line loads before it knows what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """
import sys
from kvwatch.commands.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sorted(name for name in sys.modules if name.split(".")[0] not in {*sys.stdlib_module_names, "__main__"}), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], [], ["no-such-command"], ["--no-such-option"]])
def test_what_needs_no_command_loads_neither_the_model_nor_a_library(arguments):
    """`--version` within 150 ms, counted in modules instead of seconds: the standard library's and these."""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{LOADED}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = ran.stderr.splitlines()[-1].split()
    assert loaded == ["kvwatch", "kvwatch.commands", "kvwatch.commands.cli", "kvwatch.errors", "kvwatch.text"]
