"""Where the settings come from: defaults < YAML file < environment < flags. All errors are found before any is reported."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from kvwatch.config.settings import Settings
from kvwatch.config.yaml_file import YamlError, parse_yaml, read_text
from kvwatch.errors import ConfigError
from kvwatch.text import one_line

_PREFIX: Final = "KVWATCH_"
_WORDS: Final = {
    "extra_forbidden": "there is no such setting",
    "missing": "it is missing",
    "model_type": "it must be a group of settings",
    "model_attributes_type": "it must be a group of settings",
    "list_type": "it must be a list",
    "dict_type": "it must be a mapping",
}
"""Where pydantic's own words speak of Python."""
_LONGEST_PATH: Final = 200
_SERVICE_LINK: Final = re.compile(r"KVWATCH_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)")
"""What Kubernetes puts into every pod for a Service whose name begins with kvwatch: no setting of ours."""


def load(
    arguments: argparse.Namespace | None = None,
    flags: CliSettingsSource[Any] | None = None,
) -> Settings:
    """Read the settings; raises `ConfigError` with one line per error, all of them."""
    path: Path | None = getattr(arguments, "config_file", None)
    urls: Sequence[str] = getattr(arguments, "urls", None) or ()
    errors = _environment_errors(os.environ)
    from_file: dict[str, Any] = {}
    if path is not None:
        try:
            from_file = _read_yaml(path)
        except ConfigError as error:
            errors.extend(error.errors)
    sources = _Sources(from_file, {"targets": list(urls)} if urls else {}, flags(parsed_args=arguments) if flags and arguments else None)
    try:
        settings = sources.settings()
    except ValidationError as error:
        errors.extend(_lines(error))
    except SettingsError as error:
        errors.extend([] if errors else [f"environment: {one_line(error)}"])  # a group set as a whole has been named already
    else:
        if not errors:
            return settings
    raise ConfigError(errors)


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


def _environment_errors(environment: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that no setting reads: pydantic-settings ignores those of the top level silently."""
    ours = {name.upper(): name for name in environment if name.upper().startswith(_PREFIX)}
    errors = []
    for upper, name in sorted(ours.items()):
        section, nested, _ = upper.removeprefix(_PREFIX).partition("__")
        if _SERVICE_LINK.fullmatch(upper):
            continue
        field = Settings.model_fields.get(section.lower())
        if field is None:
            errors.append(f"environment: {name} is not a setting")
        elif not nested and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            errors.append(f"environment: {name} is a group of settings: write {name}__NAME_OF_ONE")
    return errors


def _lines(invalid: ValidationError) -> list[str]:
    """One line per error: where it is, and what is wrong; never a value that may be a secret."""
    lines = []
    for error in invalid.errors(include_url=False, include_input=False, include_context=False):
        where = one_line(".".join(str(part) for part in error["loc"]))[:_LONGEST_PATH]
        what = _WORDS.get(error["type"]) or one_line(error["msg"].removeprefix("Value error, ").replace("Input should", "it must"))
        lines.append(f"{where}: {what}" if where else what)
    return lines


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        found = parse_yaml(read_text(path))
    except YamlError as error:
        raise ConfigError([f"{path}{'' if error.line is None else f':{error.line}'}: {error}"]) from error
    except ValueError as error:
        raise ConfigError([f"{path}: {error}"]) from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError([f"{path}: the file must hold a mapping of settings, not a {type(found).__name__}"])
    # A section whose settings are all commented out is read as null.
    return {str(key): value for key, value in found.items() if value is not None}
