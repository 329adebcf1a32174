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
    """The runs of a file, which may hold several. Raises `UsageError` in one line."""
    try:
        documents = _documents(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({error})") from error
    names = [path.name] if len(documents) == 1 else [f"{path.name}#{index}" for index in range(1, len(documents) + 1)]
    try:
        return tuple(run for document, name in zip(documents, names, strict=True) for run in _runs(document, name))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _documents(text: str) -> list[Any]:
    """The documents of a file: one, those of a list, or several behind one another, as ``--append-result`` writes them."""
    decoder, place = json.JSONDecoder(), 0
    found: list[Any] = []
    while text[place:].strip() or not found:
        place += len(text[place:]) - len(text[place:].lstrip())
        document, place = decoder.raw_decode(text, place)
        found.append(document)
    whole = found[0] if len(found) == 1 and isinstance(found[0], list) and found[0] else found
    return list(whole)


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
            time_to_first_token=_bench_percentiles(result, "ttft", _of_successes(result, "ttfts")),
            inter_token_latency=_bench_percentiles(result, "itl", _flat(result.get("itls"))),
            e2e_latency=_bench_percentiles(result, "e2el", _of_successes({**result, "latencies": _latencies(result)}, "latencies")),
        ),
        conditions=Conditions(
            model_name=_text(result.get("model_id")),
            max_num_seqs=_setting(result, "max_num_seqs"),
            max_num_batched_tokens=_setting(result, "max_num_batched_tokens"),
            requests=completed,
            requests_per_second=_number(result.get("request_throughput")),
            concurrency=_number(result.get("max_concurrency")),
            mean_prompt_tokens=_quotient(_number(result.get("total_input_tokens")), completed),
            mean_output_tokens=_quotient(_number(result.get("total_output_tokens")), completed),
        ),
    )


def _of_successes(result: Mapping[str, Any], name: str) -> Any:
    """What ``--save-detailed`` kept of each request, without those that failed: they are in it as zeros."""
    every, errors = result.get(name), result.get("errors")
    if not isinstance(every, Sequence) or not isinstance(errors, Sequence) or len(errors) != len(every):
        return every
    return [value for value, error in zip(every, errors, strict=True) if not error]


def _latencies(result: Mapping[str, Any]) -> Any:
    """How long each request took: as it says, else the first token and all that came between the others."""
    first, between = result.get("ttfts"), result.get("itls")
    if "latencies" in result or not isinstance(first, Sequence) or not isinstance(between, Sequence) or len(first) != len(between):
        return result.get("latencies")
    return [ttft + sum(itls) for ttft, itls in zip(first, between, strict=True)]


def _setting(result: Mapping[str, Any], name: str) -> int | None:
    """A setting of the server, as ``vllm bench sweep`` and ``--metadata`` put it beside the figures."""
    value = str(result.get(name, result.get(name.replace("_", "-"))))
    return int(value) if value.isascii() and value.isdigit() else None


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
