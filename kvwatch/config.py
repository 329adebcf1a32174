"""Where the settings come from: defaults < YAML file < environment < flags. All faults are found before any is reported."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from kvwatch.errors import ConfigError
from kvwatch.settings import Settings

_PREFIX: Final = "KVWATCH_"
_SERVICE_LINK: Final = re.compile(r"KVWATCH_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)")
"""What Kubernetes puts into every pod for a Service whose name begins with kvwatch: no setting of ours."""


def add_flags(parser: argparse.ArgumentParser) -> CliSettingsSource[Any]:
    """Give *parser* a flag for every knob, spelled as the Prometheus world spells them (``--web.listen-address``)."""
    parser.add_argument("urls", nargs="*", metavar="URL", help="vLLM /metrics URLs to watch (default: http://127.0.0.1:8000/metrics)")
    parser.add_argument("--config.file", dest="config_file", type=Path, metavar="FILE", help="YAML configuration")
    parser.add_argument("--config.check", dest="config_check", action="store_true", help="check the configuration and exit")
    return CliSettingsSource(
        Settings,
        root_parser=parser,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_implicit_flags=True,
        cli_use_class_docs_for_groups=True,
    )


def load(
    arguments: argparse.Namespace | None = None,
    flags: CliSettingsSource[Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings; raises `ConfigError` with one line per fault."""
    path: Path | None = getattr(arguments, "config_file", None)
    urls: Sequence[str] = getattr(arguments, "urls", None) or ()
    environment = os.environ if environment is None else environment
    faults = [f"environment: {name} is not a setting" for name in _unknown_names(environment)]
    from_file: dict[str, Any] = {}
    if path is not None:
        try:
            from_file = _read_yaml(path)
        except ConfigError as fault:
            faults.extend(fault.faults)
    sources = _Sources(from_file, {"targets": list(urls)} if urls else {}, flags(parsed_args=arguments) if flags and arguments else None)
    try:
        settings = sources.settings()
    except ValidationError as fault:
        faults.extend(_lines(fault))
    except SettingsError as fault:
        faults.append(f"environment: {fault}")
    else:
        if not faults:
            return settings
    raise ConfigError(faults)


class _Sources:
    """The places settings come from, highest first."""

    def __init__(self, from_file: dict[str, Any], from_arguments: dict[str, Any], flags: PydanticBaseSettingsSource | None) -> None:
        self._from_file = from_file
        self._from_arguments = from_arguments
        self._flags = flags

    def settings(self) -> Settings:
        """Build the settings; raises pydantic's errors."""
        sources = self

        class Loaded(Settings):
            """`Settings`, read from these places."""

            @classmethod
            def settings_customise_sources(
                cls,
                settings_cls: type[BaseSettings],
                init_settings: PydanticBaseSettingsSource,
                env_settings: PydanticBaseSettingsSource,
                dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings' signature
                file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings' signature
            ) -> tuple[PydanticBaseSettingsSource, ...]:
                flags = () if sources._flags is None else (sources._flags,)
                return init_settings, *flags, env_settings, InitSettingsSource(settings_cls, sources._from_file)

        return Loaded(**self._from_arguments)


def _unknown_names(environment: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that no setting reads: pydantic-settings ignores those of the top level silently."""
    fields = {name.upper() for name in Settings.model_fields}
    ours = (name for name in environment if name.upper().startswith(_PREFIX))
    return sorted(
        name
        for name in ours
        if name.upper().removeprefix(_PREFIX).split("__")[0] not in fields and not _SERVICE_LINK.fullmatch(name.upper())
    )


def _lines(fault: ValidationError) -> list[str]:
    """One line per fault: where it is, and what is wrong; never the value, which may be a secret."""
    lines = []
    for error in fault.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in error["loc"])
        what = error["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {what}" if where else what)
    return lines


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key may stand only once: the second one would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        found = yaml.load(path.read_text("utf-8"), _StrictLoader)  # noqa: S506 - it is a SafeLoader
    except OSError as fault:
        raise ConfigError([f"{path}: {fault.strerror or fault}"]) from fault
    except UnicodeDecodeError as fault:
        raise ConfigError([f"{path}: not UTF-8"]) from fault
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError([f"{where}: {getattr(fault, 'problem', None) or fault}"]) from fault
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError([f"{path}: the file must hold a mapping of settings, not a {type(found).__name__}"])
    return {str(key): value for key, value in found.items()}
