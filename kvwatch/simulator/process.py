"""What the API server exports about itself: its process, and the responses of its web framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from kvwatch.simulator.families import counter, gauge, histogram, summary
from kvwatch.simulator.simulation import Simulation

_HANDLER: Final = {"handler": "/v1/completions"}
_START_CPU_SECONDS: Final = 6.0
_IDLE_CPU_SHARE: Final = 0.002


def process_families(simulation: Simulation) -> Iterator[Metric]:
    """``python_*`` and ``process_*``; start time and processor seconds follow the simulation, the rest only has the right shape."""
    tokens = sum(engine.counters.generation_tokens for engine in simulation.engines)
    generations = ("0", "1", "2")

    def per_generation(name: str, help_text: str, values: tuple[float, float, float]) -> Metric:
        samples = [({"generation": generation}, value) for generation, value in zip(generations, values, strict=True)]
        return counter(f"python_gc_{name}", help_text, samples, None)

    yield per_generation("objects_collected", "Objects collected during gc", (14803.0, 3273.0, 466.0))
    yield per_generation("objects_uncollectable", "Uncollectable objects found during GC", (0.0, 0.0, 0.0))
    collections = 1568.0 + tokens // 800
    yield per_generation("collections", "Number of times this generation was collected", (collections, collections // 11, 10.0))
    info = {"implementation": "CPython", "major": "3", "minor": "11", "patchlevel": "7", "version": "3.11.7"}
    yield gauge("python_info", "Python platform information", [(info, 1.0)])
    yield gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", [({}, 2.028957696e9)])
    yield gauge("process_resident_memory_bytes", "Resident memory size in bytes.", [({}, 6.60369408e8)])
    yield gauge(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        [({}, simulation.started_unix)],
    )
    age = simulation.unix - simulation.started_unix
    busy = _START_CPU_SECONDS + _IDLE_CPU_SHARE * age + simulation.api_server.busy_seconds(simulation.now)
    yield counter("process_cpu_seconds", "Total user and system CPU time spent in seconds.", [({}, round(busy, 2))], None)
    yield gauge("process_open_fds", "Number of open file descriptors.", [({}, 90.0)])
    yield gauge("process_max_fds", "Maximum number of open file descriptors.", [({}, 20000.0)])


def http_families(simulation: Simulation, created: float | None) -> Iterator[Metric]:
    """What prometheus-fastapi-instrumentator exports; its labelled children appear with their first response."""
    http = simulation.http
    posted = {**_HANDLER, "method": "POST"}
    total = sum(http.responses.values())
    responses = [({**posted, "status": status}, value) for status, value in http.responses.items()]
    yield counter("http_requests", "Total number of requests by method, status and handler.", responses, created)
    size = "Content length of {} requests by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. "
    if total:
        yield summary("http_request_size_bytes", size.format("incoming"), _HANDLER, count=total, total=http.request_bytes, created=created)
        yield summary(
            "http_response_size_bytes",
            size.replace("requests", "responses").format("outgoing"),
            _HANDLER,
            count=total,
            total=0.0,
            created=created,
        )
    yield histogram(
        "http_request_duration_highr_seconds",
        "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ",
        [({}, http.fine)],
        created,
    )
    yield histogram(
        "http_request_duration_seconds",
        "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ",
        [(posted, http.coarse)] if total else [],
        created,
    )
