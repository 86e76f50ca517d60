"""The template engine of all pages."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from dovetail.toolkit import wording

UNFOLDED = 50
"""How many rows of a long table are seen before the reader asks for the rest."""


def environment() -> Environment:
    """Return the template engine of all pages."""
    environment = Environment(
        loader=PackageLoader("dovetail.toolkit"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(wording=wording)
    return environment
