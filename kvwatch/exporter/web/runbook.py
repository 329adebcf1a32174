"""The runbook as a page at ``/runbook``, each alert under its own name: ``/runbook#KVWatchPreemptionStorm``. Read and rendered once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from jinja2 import Environment
from markdown_it import MarkdownIt
from markupsafe import Markup

from kvwatch.exporter.web.routes import NOTHING_ALLOWED, Response

_INSTALLED: Final = Path(__file__).with_name("RUNBOOK.md")
_IN_SOURCES: Final = Path(__file__).resolve().parents[3] / "rules" / "RUNBOOK.md"
_STYLE: Final = (
    "body{max-width:50rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif}td,th{padding:.2rem .6rem;text-align:left}"
)
_PAGE: Final = Environment(autoescape=True).from_string(
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>kvwatch: runbook</title><style>"
    f"{_STYLE}"
    "</style></head><body>{{ text }}</body></html>"
)


@cache
def first_steps() -> Mapping[str, Markup]:
    """Of each alert, by its heading, the first thing its runbook asks to check; nothing where the text was not installed."""
    markdown = MarkdownIt("commonmark")
    found: dict[str, Markup] = {}
    alert, checking = "", False
    for before, token in pairwise(markdown.parse(_text()) if _path().exists() else []):
        if before.type == "heading_open":
            alert, checking = (token.content, False) if before.tag == "h2" else (alert, token.content == "Check first")
        elif checking and token.type == "inline" and alert not in found:
            found[alert] = Markup(markdown.renderInline(token.content))  # noqa: S704 - our own text, in which markdown-it escapes HTML
    return found


def _path() -> Path:
    return _INSTALLED if _INSTALLED.exists() else _IN_SOURCES


def _text() -> str:
    return _path().read_text(encoding="utf-8")


@cache
def runbook() -> Response:
    """The page. Raises `OSError` where the text was not installed."""
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(_text())
    for heading, text in pairwise(tokens):
        if heading.type == "heading_open" and heading.tag == "h2":
            heading.attrSet("id", text.content)
    body = Markup(markdown.renderer.render(tokens, markdown.options, {}))  # noqa: S704 - our own text, in which markdown-it escapes HTML
    page = _PAGE.render(text=body)
    return Response(200, "text/html; charset=utf-8", page.encode(), f"{NOTHING_ALLOWED}; style-src 'unsafe-inline'")
