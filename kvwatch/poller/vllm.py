"""Samples become one `Snapshot` per engine.

An engine is a ``(model_name, engine)`` pair. Labels we do not know are tolerated: series that differ only in them, or in ``pid``
(vLLM 0.9.2 - 0.11.0 with several API servers, where all but one are 0), are one number, the largest. Only the labels of
`REPLICA_LABELS` tell apart servers that share a page (a Ray node agent, a federation): when several share a pair, each is an engine of
its own named ``<engine>@<replica>``; while there is one, the name stays plain.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from kvwatch.errors import ScrapeError
from kvwatch.model import EngineConfig, EngineId, Scrape
from kvwatch.poller import names
from kvwatch.poller.exposition import decode, parse_labels, select
from kvwatch.poller.refusal import refusal
from kvwatch.poller.snapshot import Draft, build_snapshot, read_config

REPLICA_LABELS: Final = ("ReplicaId", "WorkerId", "pod", "instance")
DEFAULT_ENGINE: Final = "0"
_PART_LABELS: Final = ("le", "finished_reason", "reason", "source", "sleep_state")
_INFERENCE: Final = ("/v1/", "/v2/", "/generate", "/invocations", "/inference/", "/pooling", "/classify", "/score", "/rerank", "/embed")
_REFUSED: Final = "4xx"
"""What the API server refuses never reached an engine. Clients that go away are counted as ``2xx``."""
_NOT_INFERENCE: Final = ("/v1/models", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")


class Key(NamedTuple):
    """Whose series it is: the labels that say so."""

    model_name: str
    engine: str
    replica: str


class ConfigSeries(NamedTuple):
    """A ``cache_config_info`` series; it has no model name, and no engine either before vLLM 0.9."""

    engine: str | None
    replica: str
    config: EngineConfig


def parse_scrape(body: bytes, at: float, unix: float | None = None) -> Scrape:
    """The snapshots in one exposition, ordered by engine; `at` is when it was asked for, `unix` the same in unix seconds where known.

    Raises `ScrapeError` when a line we need cannot be parsed, or when no engine is in it, with the reason why (`decode`, `refusal`).
    """
    text = decode(body)
    drafts: dict[Key, Draft] = {}
    configs: list[ConfigSeries] = []
    server: dict[str, float] = {}
    carriers: dict[str, str] = {}
    for (prefix, sample), labels, value in select(text, names.resolve):
        if sample in names.SERVER:
            _read_server(server, sample, labels, value)
        elif sample == names.CONFIG:
            configs.append(_config_series(labels))
        else:
            key, part = _address(labels)
            parts = drafts.setdefault(key, {}).setdefault(sample, {})
            if math.isfinite(value) and value > parts.get(part, -math.inf):
                parts[part] = value
                carriers[sample] = prefix
    engines = _engines(drafts)
    if not engines:
        raise ScrapeError(*refusal(text))
    return Scrape(
        at=at,
        unix=unix,
        snapshots=tuple(
            build_snapshot(engine, at, draft, _config_of(replica, raw_engine, configs))
            for engine, (raw_engine, replica, draft) in sorted(engines.items(), key=lambda item: item[0])
        ),
        process_start_time=server.get(names.PROCESS_START),
        process_cpu_seconds=server.get(names.PROCESS_CPU),
        http_requests=server.get(names.HTTP_REQUESTS),
        sources=_sources(tuple(carriers.items())),
    )


def _read_server(server: dict[str, float], sample: str, labels: str, value: float) -> None:
    """Add up the requests of the inference handlers over method and status; of the process values keep the largest."""
    if not math.isfinite(value):
        return
    if sample != names.HTTP_REQUESTS:
        server[sample] = max(value, server.get(sample, value))
    elif _is_inference(labels):
        server[sample] = server.get(sample, 0.0) + value


@lru_cache(maxsize=1024)
def _is_inference(labels: str) -> bool:
    read = parse_labels(labels)
    handler = read.get("handler", "")
    return read.get("status") != _REFUSED and handler.startswith(_INFERENCE) and not handler.startswith(_NOT_INFERENCE)


@lru_cache(maxsize=32768)
def _address(labels: str) -> tuple[Key, str]:
    """Whose series this label text names, and which part of its family: ``le``, ``finished_reason`` and the like, else ``""``.

    Remembered for some 60 texts per engine, so what is kept of each is small and shared.
    """
    read = parse_labels(labels)
    part = next((read[name] for name in _PART_LABELS if name in read), "")
    model_name = _said(read, "model_name") or _said(read, "model") or ""  # Triton says model
    return _key(model_name, _said(read, "engine") or DEFAULT_ENGINE, _replica(read)), sys.intern(part)


@lru_cache(maxsize=4096)
def _key(model_name: str, engine: str, replica: str) -> Key:
    return Key(model_name, engine, replica)


@lru_cache(maxsize=512)
def _config_series(labels: str) -> ConfigSeries:
    read = parse_labels(labels)
    return ConfigSeries(_said(read, "engine"), _replica(read), read_config(read))


def _said(labels: Mapping[str, str], name: str) -> str | None:
    """A label's value, unless it is empty or the ``"None"`` that Python prints for nothing."""
    value = labels.get(name)
    return None if value in (None, "", "None") else value


def _replica(labels: Mapping[str, str]) -> str:
    return next((labels[name] for name in REPLICA_LABELS if labels.get(name)), "")


def _engines(drafts: Mapping[Key, Draft]) -> dict[EngineId, tuple[str, str, Draft]]:
    """Engine -> its ``engine`` label, its replica and what was read of it."""
    replicas: dict[tuple[str, str], dict[str, Draft]] = {}
    for key, draft in drafts.items():
        replicas.setdefault((key.model_name, key.engine), {})[key.replica] = draft
    engines: dict[EngineId, tuple[str, str, Draft]] = {}
    for (model_name, engine), by_replica in replicas.items():
        proven = {replica: draft for replica, draft in by_replica.items() if not names.CORE.isdisjoint(draft)}
        if len(proven) == 1:
            replica = next(iter(proven))
            engines[_engine_id(model_name, engine)] = (engine, replica, _merged(by_replica))
            continue
        for replica, draft in proven.items():
            engines[_engine_id(model_name, f"{engine}@{replica}" if replica else engine)] = (engine, replica, draft)
    return engines


@lru_cache(maxsize=4096)
def _engine_id(model_name: str, engine: str) -> EngineId:
    return EngineId(model_name, engine)


def _merged(by_replica: Mapping[str, Draft]) -> Draft:
    """What one engine said under several replica labels, of which only one proves an engine; the largest where they overlap."""
    if len(by_replica) == 1:
        return next(iter(by_replica.values()))
    merged: Draft = {}
    for draft in by_replica.values():
        for sample, parts in draft.items():
            into = merged.setdefault(sample, {})
            for part, value in parts.items():
                into[part] = max(value, into.get(part, value))
    return merged


def _config_of(replica: str, engine: str, configs: list[ConfigSeries]) -> EngineConfig:
    """The configuration that names this engine, or the one that names none and so is everybody's."""
    for config in configs:
        if config.engine in (None, engine) and (config.replica in ("", replica) or not replica):
            return config.config
    return EngineConfig()


@lru_cache(maxsize=256)
def _sources(carriers: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """SignalName -> the name that carried it, as it came, of (sample, prefix) pairs. One object for all scrapes that look alike."""
    prefixes = dict(carriers)
    sources = {
        signal.name: next((prefixes[sample] + sample for sample in signal.samples if sample in prefixes), None) for signal in names.SIGNALS
    }
    return MappingProxyType({signal: name.removesuffix("_bucket") for signal, name in sources.items() if name is not None})
