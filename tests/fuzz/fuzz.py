"""Random inputs at every border, from seeds: ``python tests/fuzz/fuzz.py KIND COUNT [SEED]``; `test_fuzz.py` runs a short form.

A finding is an exception that is not the border's own, an error of more than one line, or an answer that takes longer than a second.
Printed are the seed of each finding and what it was.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Final

import wire
from mutation import PAGE, mutated, one_line
from numbers_fuzz import numbers

from kvwatch.assess import judge_for
from kvwatch.config.settings import Settings
from kvwatch.config.sources import load
from kvwatch.errors import ConfigError, RecordingError, ScrapeError
from kvwatch.incident.recording import Reader
from kvwatch.incident.replay import rows_of
from kvwatch.model import ScrapeFailure
from kvwatch.poller.discovery import read_file_sd
from kvwatch.poller.vllm import parse_scrape

_CONFIGURATION: Final = """\
targets:
  - name: a
    url: http://127.0.0.1:8000/metrics
    max_num_seqs: 32
poll: {interval: 5s, timeout: 2s}
window: &w {fast: 30s, slow: 2m}
thresholds: {kv_watermark: 0.9, storm_ratio: 0.1, stall: 10s}
alertmanager: {urls: [http://am:9093], labels: {pod: x}}
web: {listen_address: ":20058"}
log: {level: info}
"""
_SLOW_SECONDS: Final = 1.0
"""Of processor time: the machine may have other work."""
_SD: Final = '- targets: ["a:1", "b:2"]\n  labels: {instance: x, __scheme__: https}\n'


def exposition(noise: random.Random) -> None:
    """Some pages of one target, one after another, through parser, classifier, advice and alerts."""
    settings = Settings(
        poll={"interval": noise.choice((0.1, 1, 5, 60, 3600))},
        window=noise.choice(({}, {"fast": 1, "slow": 2}, {"fast": 300, "slow": 3600})),
        thresholds={"storm_ratio": noise.choice((0, 0.1, 1)), "kv_watermark": noise.choice((0, 0.9, 1)), "storm_min_preemptions": 1},
    )
    judge = judge_for(settings)
    at = 0.0
    for _ in range(noise.choice((1, 2, 6))):
        at += settings.poll.interval * noise.choice((1, 1, 1, 7))
        page = mutated(PAGE, noise).encode("utf-8", "surrogatepass")
        try:
            faults = judge.scraped(parse_scrape(page, at)).faults
        except ScrapeError as error:
            one_line(error.detail)
            faults = judge.failed(ScrapeFailure(at, error.reason, error.detail)).faults
        for fault in faults:
            raise fault


def recording(noise: random.Random) -> None:
    """A recording, read and judged."""
    lines = [json.dumps({"kvwatch_recording": 1, "target": "a"})]
    lines += [json.dumps({"t": 1000.0 + 5 * turn, "body": PAGE.replace("4000.0", str(4000 + 10 * turn))}) for turn in range(4)]
    content = mutated("\n".join(lines) + "\n", noise).encode("utf-8", "surrogatepass")
    if noise.random() < 0.3:
        content = bytes(byte if noise.random() > 0.001 else noise.randint(0, 255) for byte in content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / noise.choice(("a.jsonl", "a.jsonl.gz", "a.jsonl.xz"))
        path.write_bytes(content)
        judge = judge_for(Settings())
        try:
            with Reader(path, one_line) as reader:
                for entry in reader:
                    for row in rows_of(entry, reader.target, judge):
                        json.dumps(row.as_json())
        except RecordingError as error:
            one_line(str(error))


def configuration(noise: random.Random) -> None:
    """A configuration file and a file of targets."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.yaml"
        path.write_bytes(mutated(_CONFIGURATION, noise).encode("utf-8", "surrogatepass"))

        class Arguments:
            config_file = path
            urls = ()

        try:
            load(Arguments())  # type: ignore[arg-type]  # all that is looked at
        except ConfigError as error:
            for line in error.errors:
                one_line(line)
        path.write_bytes(mutated(_SD, noise).encode("utf-8", "surrogatepass"))
        with suppress(ValueError):
            read_file_sd(path)


KINDS: Final[dict[str, Callable[[], AbstractContextManager[Callable[[random.Random], None]]]]] = {
    "exposition": lambda: nullcontext(exposition),
    "numbers": numbers,
    "recording": lambda: nullcontext(recording),
    "configuration": lambda: nullcontext(configuration),
    "alertmanager": wire.alertmanager,
    "answer": wire.answer,
    "request": wire.request,
}
"""What is open while inputs are tried, and gives what tries one."""


def findings(kind: str, count: int, first: int = 0) -> list[tuple[int, str]]:
    """The seeds from *first* on that found something, and what."""
    with KINDS[kind]() as attempt:
        return [(seed, what) for seed in range(first, first + count) if (what := _finding(attempt, seed)) is not None]


def _finding(attempt: Callable[[random.Random], None], seed: int) -> str | None:
    began = time.process_time()
    try:
        attempt(random.Random(seed))  # noqa: S311 - a seed is to be repeated
    except Exception:  # noqa: BLE001 - this is what is looked for
        return traceback.format_exc(limit=-3)
    took = time.process_time() - began
    return f"took {took:.1f} s" if took > _SLOW_SECONDS else None


if __name__ == "__main__":
    asked, number, *rest = sys.argv[1:]
    result = findings(asked, int(number), int(rest[0]) if rest else 0)
    for seed, what in result[:20]:
        print(seed, what)  # noqa: T201 - a program's output
    print(f"{asked}: {number} inputs, {len(result)} findings")  # noqa: T201
    sys.exit(bool(result))
