"""One run of a load against a server: the five lines, and the conditions under which they were measured.

The JSON form (`Run.as_json`) is stable within ``kvwatch_snapshot``; keys may be added. Latencies are seconds, ``null`` is what was
not measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A latency in seconds at three percentiles; ``None`` where the source does not give one."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class FiveLines:
    """What a run is judged by."""

    generated_tokens_per_second: float | None = None
    total_tokens_per_second: float | None = None
    """Prompt and generated tokens."""
    preemption_ratio: float | None = None
    """``preemptions / max(preemptions + finished, mean running)`` over the whole run; a client cannot see it."""
    time_to_first_token: Percentiles = Percentiles()
    inter_token_latency: Percentiles = Percentiles()
    e2e_latency: Percentiles = Percentiles()


@dataclass(frozen=True, slots=True)
class Conditions:
    """What has to be alike for two runs to be comparable, and what was changed between them."""

    model_name: str | None = None
    vllm_version: str | None = None
    engines: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    """Of one engine."""
    requests: float | None = None
    """Finished in the run."""
    requests_per_second: float | None = None
    concurrency: float | None = None
    """Mean of the requests running and waiting, or the client's own concurrency."""
    mean_running: float | None = None
    mean_waiting: float | None = None
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None
    restarts: int = 0
    """Times the server's counters began again from zero."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run; *source* is a file or URL in words, *seconds* its length."""

    source: str
    seconds: float
    lines: FiveLines
    conditions: Conditions

    def as_json(self) -> dict[str, Any]:
        """The document of ``kvwatch snapshot``."""
        return {"kvwatch_snapshot": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], source: str) -> Run:
        """Read what `as_json` wrote; keys that are not known are ignored. Raises `ValueError` naming what is wrong."""
        if document.get("kvwatch_snapshot") != VERSION:
            raise ValueError(f"snapshot version {document.get('kvwatch_snapshot')!r}; this kvwatch reads version {VERSION}")
        lines = _group(document, "lines")
        percentiles = {name: Percentiles(**_known(Percentiles, _group(lines, name))) for name in _LATENCIES}
        return cls(
            source=source,
            seconds=_number(document, "seconds") or 0.0,
            lines=FiveLines(**{**_known(FiveLines, lines), **percentiles}),
            conditions=Conditions(**_known(Conditions, _group(document, "conditions"))),
        )


_LATENCIES: Final = ("time_to_first_token", "inter_token_latency", "e2e_latency")
_TEXTS: Final = frozenset({"model_name", "vllm_version"})


def _group(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} is missing")  # noqa: TRY004 - a bad file, not a bad call
    return found


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that *kind* has a field for, numbers checked."""
    names = {field.name for field in fields(kind)} - set(_LATENCIES)
    return {name: values[name] if name in _TEXTS else _number(values, name) for name in names if values.get(name) is not None}


def _number(values: Mapping[str, Any], name: str) -> Any:
    value = values.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf")):
        raise ValueError(f"{name} is {value!r}, not a number")
    return value
