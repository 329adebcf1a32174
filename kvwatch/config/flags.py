"""The flags of ``kvwatch run``: one for every setting, with a help text an operator can use.

pydantic-settings makes the flags; what it would say of them (types of Python, defaults as ``None``) is said better here.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_settings import CliSettingsSource

from kvwatch.config.policy import Policy
from kvwatch.config.settings import Settings
from kvwatch.config.values import parse_duration

_EPILOG: Final = """\
Every flag is also a variable of the environment (--poll.interval is KVWATCH_POLL__INTERVAL) and a key of the YAML file
(poll: {interval: 5s}). A flag goes before the environment, the environment before the file. Durations are written as
500ms, 15s or 1m30s. Several targets with names of their own are listed in the file: targets: [{name: a, url: http://…}].
"""
_METAVARS: Final = (("Path", "FILE"), ("dict", "NAME=VALUE,..."), ("list", "A,B,..."), ("int", "N"), ("float", "RATIO"))
"""By what stands in the type of a setting, the first that does; ``TEXT`` otherwise."""

_JUDGEMENT: Final = frozenset((*Policy.model_fields, "vllm"))
"""The sections of settings that say how a scrape is judged."""


def add_flags(parser: argparse.ArgumentParser) -> CliSettingsSource[Any]:
    """Give *parser* a flag for every knob, spelled as the Prometheus world spells them (``--web.listen-address``)."""
    parser.usage = "%(prog)s [URL ...] [--SECTION.SETTING VALUE ...]"
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("urls", nargs="*", metavar="URL", help="vLLM /metrics URLs to watch (default: http://127.0.0.1:8000/metrics)")
    _add_config_file(parser)
    parser.add_argument("--config.check", dest="config_check", action="store_true", help="check the configuration and exit")
    return _source(parser, _add_argument, _add_group)


def add_judgement_flags(parser: argparse.ArgumentParser) -> CliSettingsSource[Any]:
    """The flags of `add_flags` that say how a scrape is judged, and the file, for commands that judge the past."""
    _add_config_file(parser)
    unused = argparse.ArgumentParser(add_help=False)

    def add_argument(container: Any, *names: str, **options: Any) -> argparse.Action:
        judges = names[0].lstrip("-").partition(".")[0] in _JUDGEMENT
        return _add_argument(container if judges else unused, *names, **options)

    def add_group(parser: argparse.ArgumentParser, **options: Any) -> Any:
        judges = str(options.get("title") or "").removesuffix(" options") in _JUDGEMENT
        return _add_group(parser if judges else unused, **options)

    return _source(parser, add_argument, add_group)


def _add_config_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config.file", dest="config_file", type=Path, metavar="FILE", help="YAML configuration")


def _source(parser: argparse.ArgumentParser, add_argument: Callable[..., Any], add_group: Callable[..., Any]) -> CliSettingsSource[Any]:
    return CliSettingsSource(
        Settings,
        root_parser=parser,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_implicit_flags=True,
        add_argument_method=add_argument,
        add_argument_group_method=add_group,
    )


def _add_argument(container: Any, *names: str, **options: Any) -> argparse.Action:
    """Stand in for argparse's own method and say what a flag is in an operator's words."""
    found = _setting(names[0].lstrip("-"))
    if found is None:
        options["help"] = argparse.SUPPRESS
    else:
        field, default = found
        options["help"] = _help(field, default).replace("%", "%%")
        if "metavar" in options and not options.get("choices") and not str(options["metavar"]).startswith("{"):
            options["metavar"] = _metavar(field)
    action: argparse.Action = container.add_argument(*names, **options)
    return action


def _add_group(parser: argparse.ArgumentParser, **options: Any) -> Any:
    """Stand in for argparse's own method: a section by its name, described by its docstring."""
    section = str(options.get("title") or "").removesuffix(" options")
    found = _model(section.split("."))
    return parser.add_argument_group(title=section, description=(found.__doc__ or "").strip() if found else None)


def _setting(flag: str) -> tuple[FieldInfo, Any] | None:
    """The setting of ``section.some-name`` and its default; ``None`` for a whole section and for targets, which are no flags for people."""
    *sections, name = flag.replace("-", "_").split(".")
    model = _model(sections)
    if model is None or flag == "targets" or name not in model.model_fields or _model([*sections, name]) is not None:
        return None
    field = model.model_fields[name]
    return field, field.get_default(call_default_factory=True, validated_data={})


def _model(path: list[str]) -> type[BaseModel] | None:
    """The section at *path*."""
    model: type[BaseModel] = Settings
    for name in path:
        field = model.model_fields.get(name.replace("-", "_"))
        inside = [part for part in (field.annotation, *getattr(field.annotation, "__args__", ())) if _is_model(part)] if field else []
        if not inside:
            return None
        model = inside[0]
    return model


def _is_model(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, BaseModel)


def _help(field: FieldInfo, default: Any) -> str:
    said = re.sub(r"``|\s+", lambda match: " " if match[0].isspace() else "", field.description or "").strip().removesuffix(".")
    shown = "" if field.is_required() else _shown(field, default)
    return f"{said} (default: {shown})" if shown else said


def _shown(field: FieldInfo, default: Any) -> str:
    """A default as it would be written; nothing where there is none."""
    if default is None or default in ([], {}):
        return ""
    if isinstance(default, bool):
        return "yes" if default else "no"
    if _is_duration(field):
        return f"{default:g}s"
    return str(default)


def _metavar(field: FieldInfo) -> str:
    if _is_duration(field):
        return "DURATION"
    annotation = str(field.annotation)
    return next((metavar for part, metavar in _METAVARS if part in annotation), "TEXT")


def _is_duration(field: FieldInfo) -> bool:
    optional = (mark for part in get_args(field.annotation) for mark in getattr(part, "__metadata__", ()))
    return any(isinstance(mark, BeforeValidator) and mark.func is parse_duration for mark in (*field.metadata, *optional))
