"""How pages are made from templates: the status page and the report alike. Whatever is put into one is escaped."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates(package: str) -> Environment:
    """The templates in the directory ``templates`` of *package*; one that uses a name it was not given raises jinja2's `UndefinedError`."""
    return Environment(
        loader=PackageLoader(package, "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
