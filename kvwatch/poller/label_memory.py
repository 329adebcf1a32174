"""What the label texts of one target's page mean: read once, remembered while they keep coming, forgotten with the target.

A label text costs 20 µs to read and comes back at every scrape, some 60 of them for each engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from kvwatch.errors import ScrapeError
from kvwatch.model import MOST_ENGINES, EngineConfig, FailureReason
from kvwatch.poller.exposition import parse_labels
from kvwatch.poller.snapshot import read_config

REPLICA_LABELS: Final = ("ReplicaId", "WorkerId", "pod", "instance")
DEFAULT_ENGINE: Final = "0"
MOST_TEXTS: Final = 40_000
"""Different label texts on one page: 512 engines with 78 each; more are a second of reading, and refused."""
MOST_CHARACTERS: Final = 8_000_000
_SLACK: Final = 256
_PART_LABELS: Final = ("le", "finished_reason", "reason", "source", "sleep_state")
_INFERENCE: Final = ("/v1/", "/v2/", "/generate", "/invocations", "/inference/", "/pooling", "/classify", "/score", "/rerank", "/embed")
_REFUSED: Final = "4xx"
"""What the API server refuses never reached an engine. Clients that go away are counted as ``2xx``."""
_NOT_INFERENCE: Final = ("/v1/models", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")

Meaning = TypeVar("Meaning")


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


class Address:
    """Whose series a label text names, and which part of its family: ``le``, ``finished_reason`` and the like, else ``""``."""

    __slots__ = ("__weakref__", "key", "part")

    def __init__(self, key: Key, part: str) -> None:
        self.key, self.part = key, part


_SHARED: Final[WeakValueDictionary[str, Address]] = WeakValueDictionary()
"""What the label texts of all targets name: replicas of a model have the same. A text is here as long as a target remembers it."""


class _Meanings(dict[str, Meaning]):
    """Text -> what it means. Swept when it has grown by half since it was swept last: then only what the next page has is kept."""

    def __init__(self, read: Callable[[str], Meaning]) -> None:
        super().__init__()
        self._read = read
        self._before: dict[str, Meaning] = {}
        self._swept = True
        """Whether no page has been read whole since the sweep."""
        self._size = 0
        self._characters = 0

    def __missing__(self, text: str) -> Meaning:
        self._characters += len(text)
        if len(self) >= MOST_TEXTS or self._characters > MOST_CHARACTERS:
            said = f"more than {MOST_TEXTS} series of vLLM, or {MOST_CHARACTERS} characters of labels"
            raise ScrapeError(FailureReason.TOO_LARGE, said)
        meaning = self._before[text] if text in self._before else self._read(text)
        self[sys.intern(text)] = meaning  # one text for all targets that serve the same model
        return meaning

    def turn_page(self) -> None:
        full = len(self) > MOST_TEXTS // 2 or self._characters > MOST_CHARACTERS // 2
        if full or (not self._swept and len(self) > self._size * 3 // 2 + _SLACK):
            self._before = dict(self)
            self.clear()
            self._characters = 0
            self._swept = True
        elif self._swept:
            self._before = {}
            self._size = len(self)
            self._swept = False


class LabelMemory:
    """Of one target; used by one thread at a time. All methods raise `ScrapeError` for labels that cannot be read or are too many."""

    def __init__(self) -> None:
        self._keys: dict[Key, Key] = {}
        self._addresses = _Meanings(self._address)
        self._configs = _Meanings(_config_series)
        self._inference = _Meanings(_is_inference)

    def turn_page(self) -> None:
        """A new page begins: what has not been seen for long may be forgotten."""
        for meanings in (self._addresses, self._configs, self._inference):
            meanings.turn_page()

    def address(self, text: str) -> Address:
        """What this label text names."""
        return self._addresses[text]

    def config(self, text: str) -> ConfigSeries:
        """What the labels of ``cache_config_info`` say."""
        return self._configs[text]

    def is_inference(self, text: str) -> bool:
        """Whether a series of ``http_requests_total`` counts requests that reached an engine."""
        return self._inference[text]

    def _address(self, text: str) -> Address:
        found = _SHARED.get(text)
        if found is None:
            read = parse_labels(text)
            part = next((read[name] for name in _PART_LABELS if name in read), "")
            model_name = _said(read, "model_name") or _said(read, "model") or ""  # Triton says model
            key = Key(model_name, _said(read, "engine") or DEFAULT_ENGINE, _replica(read))
            if len(self._keys) > 2 * MOST_ENGINES:
                self._keys.clear()
            found = _SHARED[text] = Address(self._keys.setdefault(key, key), sys.intern(part))
        return found


def _config_series(text: str) -> ConfigSeries:
    read = parse_labels(text)
    return ConfigSeries(_said(read, "engine"), _replica(read), read_config(read))


def _is_inference(text: str) -> bool:
    read = parse_labels(text)
    handler = read.get("handler", "")
    return read.get("status") != _REFUSED and handler.startswith(_INFERENCE) and not handler.startswith(_NOT_INFERENCE)


def _said(labels: Mapping[str, str], name: str) -> str | None:
    """A label's value, unless it is empty or the ``"None"`` that Python prints for nothing."""
    value = labels.get(name)
    return None if value in (None, "", "None") else value


def _replica(labels: Mapping[str, str]) -> str:
    return next((labels[name] for name in REPLICA_LABELS if labels.get(name)), "")
