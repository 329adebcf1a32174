"""Samples become one `Snapshot` per engine.

An engine is a ``(model_name, engine)`` pair. Labels we do not know are tolerated: series that differ only in them, or in ``pid``
(vLLM 0.9.2 - 0.11.0 with several API servers, where all but one are 0), are one number, the largest. Only the labels of
`REPLICA_LABELS` tell apart servers that share a page (a Ray node agent, a federation): when several share a pair, each is an engine of
its own named ``<engine>@<replica>``; while there is one, the name stays plain. A page may hold `MOST_ENGINES` engines; the others are
counted and not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Final

from kvwatch.errors import ScrapeError
from kvwatch.model import MOST_ENGINES, EngineConfig, EngineId, FailureReason, Scrape
from kvwatch.poller import names
from kvwatch.poller.exposition import decode, select
from kvwatch.poller.label_memory import ConfigSeries, Key, LabelMemory
from kvwatch.poller.refusal import is_routers, refusal
from kvwatch.poller.snapshot import Draft, build_snapshot, is_measure

_LONGEST_NAME: Final = 1024
"""Characters of model and engine together; the longest path of a model on Linux is 4096, and nobody serves one."""
_MOST_KEYS: Final = 2 * MOST_ENGINES
"""An engine has two where its server's own series carry no replica."""


def parse_scrape(body: bytes, at: float, unix: float | None = None, memory: LabelMemory | None = None) -> Scrape:
    """The snapshots in one exposition, ordered by engine; `at` is when it was asked for, `unix` the same in unix seconds where known.

    *memory* remembers what the label texts of this target mean, from page to page. Raises `ScrapeError` when a line we need cannot be
    parsed, when there are too many of them, or when no engine is in it, with the reason why (`decode`, `refusal`).
    """
    text = decode(body)
    memory = LabelMemory() if memory is None else memory
    memory.turn_page()
    drafts: dict[Key, Draft] = {}
    configs: list[ConfigSeries] = []
    server: dict[str, float] = {}
    carriers: dict[str, str] = {}
    beyond: set[Key] = set()
    for (prefix, sample), labels, value in select(text, names.resolve):
        if sample in names.SERVER:
            _read_server(server, sample, memory.is_inference(labels), value)
        elif sample == names.CONFIG:
            configs.append(memory.config(labels))
        else:
            address = memory.address(labels)
            key, part = address.key, address.part
            draft = drafts.get(key)
            if draft is None:
                if len(drafts) >= _MOST_KEYS:
                    beyond.add(key)
                    continue
                draft = drafts[key] = {}
            parts = draft.setdefault(sample, {})
            if parts.get(part, -math.inf) < value < math.inf:
                parts[part] = value
                carriers[sample] = prefix
    engines = _engines(drafts)
    if not engines or (not any(engine.model_name for engine in engines) and is_routers(text)):
        raise ScrapeError(*refusal(text))
    kept = sorted((item for item in engines.items() if len(item[0].model_name) + len(item[0].engine) <= _LONGEST_NAME), key=itemgetter(0))
    if not kept:
        raise ScrapeError(FailureReason.TOO_LARGE, f"no engine's name is shorter than {_LONGEST_NAME} characters")
    return Scrape(
        at=at,
        unix=unix,
        snapshots=tuple(
            build_snapshot(engine, at, draft, _config_of(replica, raw_engine, configs))
            for engine, (raw_engine, replica, draft) in kept[:MOST_ENGINES]
        ),
        process_start_time=server.get(names.PROCESS_START),
        process_cpu_seconds=server.get(names.PROCESS_CPU),
        http_requests=server.get(names.HTTP_REQUESTS),
        sources=_sources(tuple(carriers.items())),
        engines_dropped=len(engines) + len(beyond) - len(kept[:MOST_ENGINES]),
    )


def _read_server(server: dict[str, float], sample: str, inference: bool, value: float) -> None:
    """Add up the requests of the inference handlers over method and status; of the process values keep the largest."""
    if not is_measure(value):
        return
    if sample != names.HTTP_REQUESTS:
        server[sample] = max(value, server.get(sample, value))
    elif inference:
        server[sample] = server.get(sample, 0.0) + value


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
            engines[EngineId(model_name, engine)] = (engine, replica, _merged(by_replica))
            continue
        for replica, draft in proven.items():
            engines[EngineId(model_name, f"{engine}@{replica}" if replica else engine)] = (engine, replica, draft)
    return engines


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
