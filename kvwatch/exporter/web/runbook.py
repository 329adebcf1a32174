"""The runbook as a page at ``/runbook``, each alert under its own name: ``/runbook#KVWatchPreemptionStorm``. Read and rendered once."""

from __future__ import annotations

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
def runbook() -> Response:
    """The page. Raises `OSError` where the text was not installed."""
    source = _INSTALLED if _INSTALLED.exists() else _IN_SOURCES
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(source.read_text(encoding="utf-8"))
    for heading, text in pairwise(tokens):
        if heading.type == "heading_open" and heading.tag == "h2":
            heading.attrSet("id", text.content)
    body = Markup(markdown.renderer.render(tokens, markdown.options, {}))  # noqa: S704 - our own text, in which markdown-it escapes HTML
    page = _PAGE.render(text=body)
    return Response(200, "text/html; charset=utf-8", page.encode(), f"{NOTHING_ALLOWED}; style-src 'unsafe-inline'")
