"""Runs from files: kvwatch's own snapshots, and the result files of ``vllm bench serve`` and ``guidellm``.

A client measures what its users saw: latencies include the network, and preemptions are not known. Field names: ``vllm bench serve
--save-result`` of vLLM 0.6 to 0.32 (``vllm/benchmarks/serve.py``), and the report ``guidellm benchmark`` writes as JSON (0.2 to 0.8).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvwatch.errors import UsageError
from kvwatch.runs.run import Conditions, FiveLines, Percentiles, Run

_MILLI = 1e-3


def read_runs(path: Path) -> tuple[Run, ...]:
    """The runs of a file, of which a guidellm report may hold several. Raises `UsageError` in one line."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({error})") from error
    try:
        return _runs(document, path.name)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _runs(document: Any, name: str) -> tuple[Run, ...]:
    if isinstance(document, Mapping):
        if "kvwatch_snapshot" in document:
            return (Run.from_json(document, name),)
        if "output_throughput" in document and "completed" in document:
            return (_bench_serve(document, name),)
        benchmarks = document.get("benchmarks")
        if isinstance(benchmarks, Sequence) and benchmarks and all(isinstance(one, Mapping) and "metrics" in one for one in benchmarks):
            several = len(benchmarks) > 1
            return tuple(_guidellm(one, f"{name}#{index}" if several else name) for index, one in enumerate(benchmarks, start=1))
    raise ValueError("neither a snapshot of kvwatch, nor a result of vllm bench serve or guidellm")


def _bench_serve(result: Mapping[str, Any], name: str) -> Run:
    completed, seconds = _number(result.get("completed")), _number(result.get("duration"))
    return Run(
        source=name,
        seconds=seconds or 0.0,
        lines=FiveLines(
            generated_tokens_per_second=_number(result.get("output_throughput")),
            total_tokens_per_second=_number(result.get("total_token_throughput")),
            time_to_first_token=_bench_percentiles(result, "ttft", result.get("ttfts")),
            inter_token_latency=_bench_percentiles(result, "itl", _flat(result.get("itls"))),
            e2e_latency=_bench_percentiles(result, "e2el", result.get("latencies")),
        ),
        conditions=Conditions(
            model_name=_text(result.get("model_id")),
            requests=completed,
            requests_per_second=_number(result.get("request_throughput")),
            concurrency=_number(result.get("max_concurrency")),
            mean_prompt_tokens=_quotient(_number(result.get("total_input_tokens")), completed),
            mean_output_tokens=_quotient(_number(result.get("total_output_tokens")), completed),
        ),
    )


def _bench_percentiles(result: Mapping[str, Any], metric: str, every: Any) -> Percentiles:
    """From each request where ``--save-detailed`` kept them (seconds), else as printed (milliseconds; P99 unless asked for others)."""
    known = sorted(value for value in every if _number(value) is not None) if isinstance(every, Sequence) else []
    if known:
        return Percentiles(*(_percentile(known, share) for share in (0.50, 0.95, 0.99)))
    median, p95, p99 = (_number(result.get(f"{name}_{metric}_ms")) for name in ("median", "p95", "p99"))
    return Percentiles(*(None if value is None else value * _MILLI for value in (median, p95, p99)))


def _guidellm(benchmark: Mapping[str, Any], name: str) -> Run:
    metrics = benchmark["metrics"]
    finished = _number(metrics.get("request_totals", {}).get("successful"))
    rate = _mean(metrics, "requests_per_second")
    seconds = _number(benchmark.get("duration")) or _quotient(finished, rate) or 0.0
    return Run(
        source=name,
        seconds=seconds,
        lines=FiveLines(
            generated_tokens_per_second=_mean(metrics, "output_tokens_per_second"),
            total_tokens_per_second=_mean(metrics, "tokens_per_second"),
            time_to_first_token=_guide_percentiles(metrics, "time_to_first_token_ms", _MILLI),
            inter_token_latency=_guide_percentiles(metrics, "inter_token_latency_ms", _MILLI),
            e2e_latency=_guide_percentiles(metrics, "request_latency", 1.0),
        ),
        conditions=Conditions(
            requests=finished,
            requests_per_second=rate,
            concurrency=_mean(metrics, "request_concurrency"),
            mean_prompt_tokens=_mean(metrics, "prompt_token_count"),
            mean_output_tokens=_mean(metrics, "output_token_count"),
        ),
    )


def _successful(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = (metrics.get(name) or {}).get("successful")
    return found if isinstance(found, Mapping) else {}


def _mean(metrics: Mapping[str, Any], name: str) -> float | None:
    return _number(_successful(metrics, name).get("mean"))


def _guide_percentiles(metrics: Mapping[str, Any], name: str, unit: float) -> Percentiles:
    found = _successful(metrics, name).get("percentiles") or {}
    return Percentiles(*(None if (value := _number(found.get(key))) is None else value * unit for key in ("p50", "p95", "p99")))


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The value below or at which *share* of *ordered* lies, linear between two of them."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _flat(nested: Any) -> list[Any]:
    return [value for inner in nested if isinstance(inner, Sequence) for value in inner] if isinstance(nested, Sequence) else []


def _number(value: Any) -> float | None:
    """A finite number; ``None`` for anything else (``"inf"``, ``null``)."""
    return None if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) else float(value)


def _quotient(amount: float | None, count: float | None) -> float | None:
    return amount / count if amount is not None and count else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
