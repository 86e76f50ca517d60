"""The formats of traces: the core's, and those of plugins.

A plugin ``trace.FORMAT`` names a ``TraceKind``. The core's names cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.plugins import plugins

if TYPE_CHECKING:
    from dovetail.instances.traces.trace import Trace

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "csv": "_table:CSV",
        "parquet": "_table:PARQUET",
        "sacct": "_sacct:SACCT",
        "swf": "_swf:SWF",
    }
)
"""Module and ``TraceKind`` of each format of the core; modules are imported when one is used."""


def _nothing(_first: str) -> bool:
    return False


class TraceKind(NamedTuple):
    """A format of traces.

    Attributes
    ----------
    read : callable
        Gets the path of a file, the name of the trace, and options by keyword; returns the
        ``Trace``.
    recognises : callable
        Gets the first line of a file; returns whether it is of this format.
    endings : tuple of str
        Files with such a name ending (``.swf``) are of this format, also with a further ``.gz``.
    options : tuple of str
        The options of ``read_trace`` that ``read`` takes.
    measured_on : callable or None
        For a format whose run times depend on the GPU model: gets the path of a file and the
        wanted GPU model, and returns a model that has run times. ``read`` takes it as the option
        ``gpu_model``.
    """

    read: Callable[..., Trace]
    recognises: Callable[[str], bool] = _nothing
    endings: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    measured_on: Callable[[Path, str], str] | None = None


def kind_names() -> tuple[str, ...]:
    """Return the names of all formats: the core's, then those of plugins."""
    return tuple(dict.fromkeys((*KINDS, *plugins("trace"))))


def trace_kind(name: str) -> TraceKind:
    """Return a format by its name.

    Raises
    ------
    InputError
        When there is no format of this name.
    UnsupportedError
        When its plugin cannot be imported.
    """
    if name in KINDS:
        module, _, kind = KINDS[name].partition(":")
        found: TraceKind = getattr(import_module(f"dovetail.instances.traces.{module}"), kind)
        return found
    plugin = plugins("trace").get(name)
    if plugin is None:
        raise InputError(f"must be one of {', '.join(kind_names())}, got {name!r}", "kind")
    return plugin.load_as(TraceKind)


def kinds_with(options: Iterable[str] = ()) -> Mapping[str, TraceKind]:
    """Return the formats that take some options by name; plugins that fail are left out."""
    wanted = set(options)
    return {name: kind for name, kind in _usable() if wanted.issubset(kind.options)}


def require_options(name: str, options: Iterable[str]) -> None:
    """Refuse an option that a format does not take.

    Raises
    ------
    InputError
        With the formats that take it.
    """
    for option in options:
        if option not in trace_kind(name).options:
            takers = ", ".join(kinds_with([option])) or "no format"
            raise InputError(f"is an option of {takers}, got a trace in the format {name}", option)


def _usable() -> Iterator[tuple[str, TraceKind]]:
    for name in kind_names():
        try:
            yield name, trace_kind(name)
        except UnsupportedError:
            continue
