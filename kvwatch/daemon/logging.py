"""Logging: one JSON line per event, or a console for people; other libraries' logs take the same form.

Events are named ``component.what_happened``; values are keywords with their unit in the name.
"""

from __future__ import annotations

import logging
import math
import sys
from typing import Any, Final, TextIO, cast

import structlog

from kvwatch.config.settings import LogSettings
from kvwatch.daemon.log_outlet import LogOutlet
from kvwatch.text import printable

_FIRST: Final = ("timestamp", "level", "event", "target", "model_name", "engine")
_MOST_ITEMS: Final = 20
"""Of a list in one line: 500 targets or errors are a page, and make the line longer than log collectors take (16 KiB by default)."""
_TEXT_BEGINS, _TEXT_ENDS = 1000, 3000
"""Characters kept of a longer text, at both ends: a traceback names its error last, what a peer said begins with it."""


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Set up logging for the process, to *stream* (standard error by default)."""
    stream = sys.stderr if stream is None else stream
    console = stream.isatty() if settings.format == "auto" else settings.format == "console"
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    renderer: Any = structlog.dev.ConsoleRenderer(colors=stream.isatty()) if console else structlog.processors.JSONRenderer()
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _in_order_without_nan,
        _not_too_long,
        *([_printable] if console else []),
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=renderer))
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(max(level, logging.WARNING))
    for library in ("apscheduler", "urllib3"):  # what matters of them kvwatch says itself; urllib3 has a traceback for every odd header
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)


def configure_process(settings: LogSettings) -> LogOutlet:
    """The same for a daemon: to standard error, but never waiting for it."""
    outlet = LogOutlet(sys.stderr.fileno())
    configure(settings, cast("TextIO", outlet))
    return outlet


def silence() -> None:
    """Log nothing, for commands that tell on the screen what a log would."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)


def _printable(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """A terminal must not obey what a target calls itself; JSON escapes that anyway. A traceback keeps its lines."""
    return {key: printable(value) if isinstance(value, str) and key != "exception" else value for key, value in event.items()}


def _in_order_without_nan(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """What a reader looks for first comes first; NaN and infinities, which are no JSON, become null."""
    ordered = {key: event[key] for key in _FIRST if key in event} | event
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in ordered.items()}


def _not_too_long(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Long values are cut, and say so: a line that is cut as a whole is no JSON any more."""
    return {key: _cut(value) for key, value in event.items()}


def _cut(value: object) -> object:
    if isinstance(value, str) and len(value) > _TEXT_BEGINS + _TEXT_ENDS:
        left_out = len(value) - _TEXT_BEGINS - _TEXT_ENDS
        return f"{value[:_TEXT_BEGINS]} [{left_out} characters left out] {value[-_TEXT_ENDS:]}"
    if isinstance(value, list | tuple):
        more = [f"and {len(value) - _MOST_ITEMS} more"] if len(value) > _MOST_ITEMS else []
        return [*map(_cut, value[:_MOST_ITEMS]), *more]
    return value
