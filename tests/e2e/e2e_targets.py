"""Stand-ins for vLLM that serve /metrics in real time: recordings of a real one, and scripts whose onset is known to the second."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Final

from kvwatch.clock import SystemClock
from kvwatch.incident.recording import Reader
from kvwatch.poller.vllm import parse_scrape

RECORDINGS: Final = Path(__file__).resolve().parents[1] / "data" / "recordings"

Timeline = Callable[[float], bytes | None]
"""The body at so many seconds from the start; ``None`` answers 503."""


@dataclass(frozen=True)
class Phase:
    """So many seconds of one kind of load; counts are per second."""

    seconds: float
    running: float
    waiting: float = 0.0
    kv_usage: float = 0.3
    finished: float = 0.0
    preempted: float = 0.0
    tokens: float = 500.0


def scripted(*phases: Phase) -> Timeline:
    """A vLLM that does what the phases say, one after the other; the last one never ends."""

    def body(at: float) -> bytes:
        left, done = at, {"finished": 0.0, "preempted": 0.0, "tokens": 0.0}
        for phase in phases:
            last = phase is phases[-1]
            spent = left if last else min(left, phase.seconds)
            for name in done:
                done[name] += spent * getattr(phase, name)
            left -= spent
            if left <= 0 or last:
                break
        return _exposition(phase, done).encode()

    return body


def _exposition(phase: Phase, done: Mapping[str, float]) -> str:
    labels = 'engine="0",model_name="demo-8b"'
    steps = int(done["tokens"] / 20)
    return "\n".join(
        [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{labels}}} {phase.running}",
            "# TYPE vllm:num_requests_waiting gauge",
            f"vllm:num_requests_waiting{{{labels}}} {phase.waiting}",
            "# TYPE vllm:kv_cache_usage_perc gauge",
            f"vllm:kv_cache_usage_perc{{{labels}}} {phase.kv_usage}",
            "# TYPE vllm:num_preemptions_total counter",
            f"vllm:num_preemptions_total{{{labels}}} {int(done['preempted'])}",
            "# TYPE vllm:request_success_total counter",
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {int(done["finished"])}',
            "# TYPE vllm:generation_tokens_total counter",
            f"vllm:generation_tokens_total{{{labels}}} {int(done['tokens'])}",
            "# TYPE vllm:prompt_tokens_total counter",
            f"vllm:prompt_tokens_total{{{labels}}} {int(done['tokens'])}",
            "# TYPE vllm:iteration_tokens_total histogram",
            f'vllm:iteration_tokens_total_bucket{{{labels},le="+Inf"}} {steps}',
            f"vllm:iteration_tokens_total_count{{{labels}}} {steps}",
            f"vllm:iteration_tokens_total_sum{{{labels}}} {int(done['tokens'])}",
            "# TYPE vllm:cache_config_info gauge",
            'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1537",kv_cache_size_tokens="24576"} 1',
            "",
        ]
    )


def recorded(name: str, skip: float = 0.0) -> Timeline:
    """A recording in real time from *skip* seconds on; after it the server is gone."""
    with Reader(RECORDINGS / f"{name}.jsonl.xz", _complain) as entries:
        scrapes = [(entry.t, entry.body) for entry in entries]
    start = scrapes[0][0] + skip
    times = [t for t, _ in scrapes]

    def body(at: float) -> bytes | None:
        return None if start + at > times[-1] else scrapes[max(0, bisect_right(times, start + at) - 1)][1]

    return body


def _complain(what: str) -> None:
    raise AssertionError(what)


class Targets:
    """One port, one path per target: ``/NAME/metrics``."""

    def __init__(self, timelines: Mapping[str, Timeline]) -> None:
        self.clock = SystemClock()
        self.started = self.clock.monotonic()
        self._timelines = dict(timelines)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self)

            def log_message(self, *_arguments: object) -> None:
                """Tests are quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        timeline = self._timelines.get(request.path.split("/")[1])
        body = None if timeline is None else timeline(self.clock.monotonic() - self.started)
        request.send_response(503 if body is None else 200)
        request.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        request.send_header("Content-Length", str(len(body or b"")))
        request.end_headers()
        request.wfile.write(body or b"")

    def url(self, name: str) -> str:
        """Where a target serves its metrics."""
        return f"http://127.0.0.1:{self._server.server_port}/{name}/metrics"

    @property
    def names(self) -> Sequence[str]:
        """Every target."""
        return list(self._timelines)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def serving(**timelines: Timeline) -> Iterator[Targets]:
    """Targets that serve until the end of the block."""
    targets = Targets(timelines)
    try:
        yield targets
    finally:
        targets.close()


def preemptions(name: str) -> tuple[float, float]:
    """Seconds into a recording at which its first and its last preemption were counted."""
    with Reader(RECORDINGS / f"{name}.jsonl.xz", _complain) as entries:
        seen = [(entry.t, parse_scrape(entry.body, entry.t).snapshots[0].preemptions) for entry in entries if entry.body is not None]
    rises = [now for (_, before), (now, count) in pairwise(seen) if count > before]
    return rises[0] - seen[0][0], rises[-1] - seen[0][0]
