"""Rendering of pages and of their parts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dovetail.executor.jobs.states import JobState
from dovetail.live.page.parts import PageView
from dovetail.live.page.words import line

STATIC: Final[Mapping[str, str]] = MappingProxyType(
    {"page.js": "text/javascript", "icon.svg": "image/svg+xml"}
)
"""The files beside the pages, with their types."""


@cache
def static(name: str) -> bytes:
    """Return the contents of a file in ``STATIC``, or of the style sheet."""
    return (files("dovetail.live.page") / "static" / name).read_bytes()


@cache
def style() -> Markup:
    """Return the style sheet, which is in each page: a request of its own would delay it."""
    return Markup(static("page.css").decode())


@cache
def style_digest() -> str:
    """Return the digest by which a content security policy allows the style sheet."""
    return f"sha256-{base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()}"


@cache
def version() -> str:
    """Return what changes in the addresses of these files when they change."""
    return hashlib.sha256(b"".join(map(static, STATIC))).hexdigest()[:8]


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("dovetail.live.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["line"] = line
    states = [state.value for state in JobState]
    made.globals |= {"states": states, "style": style(), "version": version()}
    return made


class Frame(NamedTuple):
    """What a page shows around its parts.

    Attributes
    ----------
    user : str
        Name of the user who sees it; empty for strangers.
    leaves : bool
        Whether the user can log out.
    feed : str
        The address whose changes it shows; empty for none.
    section : str
        The section of the site to which it belongs.
    """

    user: str = ""
    leaves: bool = False
    feed: str = ""
    section: str = ""


def rendered_parts(view: PageView) -> dict[str, str]:
    """Return the HTML of each part of a page."""
    return {
        part.name: _environment().get_template(part.template).render(part.facts)
        for part in view.parts
    }


def rendered(view: PageView, parts: Mapping[str, str], frame: Frame) -> str:
    """Return a page around its rendered parts."""
    inner = [(name, Markup(html)) for name, html in parts.items()]
    return page("page.html.j2", frame, title=view.title, parts=inner)


def page(template: str, frame: Frame, **facts: object) -> str:
    """Return a page that has no parts."""
    return (
        _environment()
        .get_template(template)
        .render(frame._asdict(), user=line(frame.user, 40), **facts)
    )
