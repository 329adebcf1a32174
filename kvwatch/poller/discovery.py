"""Targets that come and go: addresses behind a name, and Prometheus' file_sd files.

`Discovery.discover` turns what was configured into concrete ``http(s)://host:port/path`` targets, as often as it is called. It blocks on
DNS and on files, never longer than a few seconds per name, so the daemon calls it beside the polls and not in them.

A source that cannot be read keeps what it said last: a DNS outage or a half-written file must not unwatch a fleet. Only an answer
removes targets: a name without addresses (also NXDOMAIN, as in Prometheus' dns_sd), a file without the group, or no file any more.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from kvwatch.config.settings import DiscoverySettings, TargetSettings
from kvwatch.config.values import TAKEN_LABELS
from kvwatch.config.yaml_file import YamlError, parse_yaml, read_text
from kvwatch.poller.lookup import Lookup, LookupFailed
from kvwatch.poller.sharding import shard_of
from kvwatch.text import one_line


@dataclass(frozen=True, slots=True)
class Discovered:
    """One look around: every concrete target of the shard, and one line for each source that could not be followed."""

    targets: tuple[TargetSettings, ...]
    sources: Mapping[str, str]
    """Where each target's name comes from: the ``dns+`` URL or the file; the configuration itself is ""."""
    errors: tuple[str, ...] = ()


class Discovery:
    """Follows names and files. Keeps the last good answer of each source, and nothing else.

    *targets* may mix fixed URLs and ``dns+`` ones; *lookup* is the way to resolve names, by default `dns_lookup` as *settings* say.
    Of everything that is found, what belongs to *shard* (i of n, from 0) is kept.
    """

    def __init__(
        self,
        targets: Sequence[TargetSettings],
        settings: DiscoverySettings,
        lookup: Lookup | None = None,
        *,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self._configured = tuple(targets)
        self._shard, self._shards = shard
        self._globs = tuple(settings.files)
        needs_dns = any(follows_dns(target) for target in targets)
        self._lookup = lookup or (_dns_lookup(settings.dns_server) if needs_dns else _no_lookup)
        self._last_good: dict[str, tuple[TargetSettings, ...]] = {}

    def succeed(self, before: Discovery) -> None:
        """Take over what *before* was told last, so that a source that cannot be read just now keeps its targets."""
        self._last_good = dict(before._last_good)

    def fixed(self) -> tuple[TargetSettings, ...]:
        """The targets that are known without looking anything up."""
        return self._ours(target for target in self._configured if not follows_dns(target))

    def discover(self) -> Discovered:
        """Every target there is now: the configured ones in their order, then those from files. Never raises for a bad source.

        Of two targets with one URL the first counts, silently; of two with one name the first counts and the other is an error,
        because the ``target`` label could not tell them apart.
        """
        errors: list[str] = []
        found: list[tuple[str, TargetSettings]] = []
        for target in self._configured:
            if follows_dns(target):
                behind = self._or_last_good(target.url, partial(addresses_as_targets, target, self._lookup), errors)
                found += [(target.url, one) for one in behind]
            else:
                found.append(("", target))
        for path in self._files(errors):
            found += [(path, one) for one in self._or_last_good(path, partial(read_file_sd, Path(path)), errors)]
        kept = self._ours(_distinct((target for _, target in found), errors))
        sources = {target.url: source for source, target in reversed(found)}  # of two with one URL the first counts
        return Discovered(kept, {target.name: sources[target.url] for target in kept}, tuple(errors))

    def _ours(self, targets: Iterable[TargetSettings]) -> tuple[TargetSettings, ...]:
        return tuple(target for target in targets if shard_of(target.url, self._shards) == self._shard)

    def _or_last_good(self, source: str, read: Callable[[], Iterable[TargetSettings]], errors: list[str]) -> tuple[TargetSettings, ...]:
        try:
            self._last_good[source] = tuple(read())
        except Exception as error:  # noqa: BLE001 - whatever a source says, it costs that source and no other
            kept = len(self._last_good.get(source, ()))
            errors.append(f"{source}: {one_line(error)}; keeping the {kept} targets it last named")
        return self._last_good.get(source, ())

    def _files(self, errors: list[str]) -> list[str]:
        """The files that exist now, each once, in a stable order. Files that are gone are forgotten with their targets."""
        paths: dict[str, None] = {}
        for pattern in self._globs:
            matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - patterns may be absolute, which Path.glob refuses
            if not matches and not glob.has_magic(pattern):
                errors.append(f"{pattern}: no such file")
            paths.update(dict.fromkeys(matches))
        names = {target.url for target in self._configured}
        self._last_good = {source: kept for source, kept in self._last_good.items() if source in names or source in paths}
        return list(paths)


def addresses_as_targets(target: TargetSettings, lookup: Lookup) -> Iterator[TargetSettings]:
    """One concrete target per address of the ``dns+http(s)`` *target*, with everything else it says.

    Its name is the concrete URL, or ``name/address:port`` where the configured target has a name of its own.
    """
    parts = urlsplit(target.url)
    scheme = parts.scheme.removeprefix("dns+")
    for address in lookup(parts.hostname or ""):
        host = f"[{address}]" if ":" in address else address
        authority = host if parts.port is None else f"{host}:{parts.port}"
        url = SplitResult(scheme, authority, parts.path, parts.query, "").geturl()
        name = url if target.name == target.url else f"{target.name}/{authority}"
        yield target.model_copy(update={"url": url, "name": name})


class _Group(BaseModel):
    """One group of a file_sd file."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    targets: list[str]
    labels: dict[str, str] = {}


_GROUPS: Final = TypeAdapter(list[_Group])


def read_file_sd(path: Path) -> list[TargetSettings]:
    """The targets of one file_sd file, JSON or YAML by its suffix. Raises `ValueError` naming the first error.

    ``__scheme__`` (http) and ``__metrics_path__`` (/metrics) are honoured. ``instance`` names the target where its group has only one.
    Labels that begin with two underscores belong to Prometheus, and those kvwatch has itself are its own; all others stay with the target.
    """
    text = read_text(path)
    try:
        groups = _GROUPS.validate_python(json.loads(text) if path.suffix == ".json" else parse_yaml(text))
        return [_file_target(host, group) for group in groups for host in group.targets]
    except ValidationError as invalid:
        error = invalid.errors()[0]
        where = ".".join(map(str, error["loc"]))
        raise ValueError(f"{where}: {error['msg']}" if where else error["msg"]) from invalid
    except YamlError as error:
        raise ValueError(f"not YAML: {error}" if error.line is None else f"not YAML: line {error.line}: {error}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def _file_target(host: str, group: _Group) -> TargetSettings:
    scheme, path = group.labels.get("__scheme__", "http"), group.labels.get("__metrics_path__", "/metrics")
    if scheme not in {"http", "https"}:
        raise ValueError(f"__scheme__ {scheme!r} is neither http nor https")
    if "/" in host:
        raise ValueError(f"{host!r} is not host:port: the scheme goes into __scheme__, the path into __metrics_path__")
    name = group.labels.get("instance", "") if len(group.targets) == 1 else ""
    return TargetSettings(url=f"{scheme}://{host}/{path.removeprefix('/')}", name=name, labels=_own_labels(group.labels))


def _own_labels(labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if not name.startswith("__") and name not in TAKEN_LABELS}


def _distinct(found: Iterable[TargetSettings], errors: list[str]) -> Iterator[TargetSettings]:
    urls: set[str] = set()
    names: set[str] = set()
    for target in found:
        if target.url in urls:
            continue
        if target.name in names:
            errors.append(f"{target.url}: the name {target.name!r} is taken by another target; not watched")
            continue
        urls.add(target.url)
        names.add(target.name)
        yield target


def follows_dns(target: TargetSettings) -> bool:
    """Whether the target stands for every address of a name."""
    return target.url.startswith("dns+")


def _dns_lookup(server: str | None) -> Lookup:
    # Here, because most kvwatches follow no name and need not carry a resolver.
    from kvwatch.poller.resolver import dns_lookup  # noqa: PLC0415

    return dns_lookup(server)


def _no_lookup(name: str) -> Sequence[str]:
    raise LookupFailed(f"{name} is not expected to be looked up")
