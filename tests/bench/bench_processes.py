"""Processes that are measured."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

LINES = 560
"""Of the body: a late V1 with the metrics of its API server."""
TICKS = os.sysconf("SC_CLK_TCK")


class Measured:
    """A process, its processor time and its memory."""

    def __init__(self, process):
        self.process = process

    def cpu(self):
        """Seconds of processor time so far, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_kib(self):
        """Resident memory in KiB."""
        return next(int(line.split()[1]) for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines() if "VmRSS" in line)

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=20)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Daemon(Measured):
    """``kvwatch run``, at `url`."""

    def __init__(self, urls, *flags, core=None, cwd=None):
        pinned = [] if core is None else ["taskset", "-c", str(core)]
        command = [*pinned, sys.executable, "-m", "kvwatch", "run", "--web.listen-address=127.0.0.1:0", "--log.format=json", *flags]
        config = cwd / f"targets-{len(urls)}-{os.urandom(4).hex()}.json"
        config.write_text(json.dumps({"targets": urls}))  # JSON is YAML
        # Into a file: nobody would read a pipe, and the daemon would wait for it once it is full.
        self.log = config.with_suffix(".log")
        with self.log.open("w") as log:
            as_deployed = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # as the image and the unit set it
            super().__init__(subprocess.Popen([*command, f"--config.file={config}"], stderr=log, env=as_deployed))
        try:
            self.url = self._started()["url"]
        except BaseException:
            self.close()  # nobody else knows of it yet, and it would run beside every later measurement
            raise

    def _started(self):
        idle = threading.Event()
        for _ in range(600):
            assert self.process.poll() is None, self.log.read_text()
            for line in self.log.read_text().split("\n")[:-1]:  # the last may not be whole yet
                if '"kvwatch.started"' in line:
                    return json.loads(line)
            idle.wait(0.1)
        raise AssertionError(self.log.read_text())

    def text(self):
        """/metrics, asked for as Prometheus does."""
        request = urllib.request.Request(f"{self.url}/metrics", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return gzip.decompress(response.read()).decode()

    def total(self, name):
        """Sum of a family over all its series."""
        return sum(float(line.rpartition(" ")[2]) for line in self.text().splitlines() if line.startswith((f"{name}{{", f"{name} ")))
