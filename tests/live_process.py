"""``kvwatch run`` as a process of its own, and how to look at it from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

from kvwatch.clock import SystemClock

PATIENCE = 30.0
"""Longer than anything here takes on a busy machine; nothing waits for it to pass."""


def eventually(condition):
    """Wait until it holds; false if it does not."""
    clock, idle = SystemClock(), threading.Event()
    until = clock.monotonic() + PATIENCE
    while not condition():
        if clock.monotonic() > until:
            return False
        idle.wait(0.01)
    return True


def get(url):
    """Status and text of a URL."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Process:
    """``python -m kvwatch run`` on a free port, after *before*, some Python."""

    def __init__(self, *arguments, env=None, before=""):
        # SIGINT must not be ignored, as it is in a shell's background job.
        program = f"{before}\nimport sys; from kvwatch.commands.cli import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "run", "--web.listen-address=127.0.0.1:0", "--log.format=json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.lines = []

    def event(self, name):
        """Read the log up to that event."""
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("{") and (found := json.loads(line))["event"] == name:
                return found
        pytest.fail(f"no {name} in {self.lines}")

    def end(self, received):
        """Seconds until it ends after that signal, and its exit code."""
        clock = SystemClock()
        began = clock.monotonic()
        self.process.send_signal(received)
        code = self.process.wait(timeout=PATIENCE)
        return clock.monotonic() - began, code

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
