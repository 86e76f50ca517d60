"""Users' classes by their import path, and errors from their code or a plugin's."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from importlib import import_module
from typing import Final

from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import others

PREFIX: Final = "python:"


def class_at(path: str, what: str, method: str) -> type:
    """Return the class that ``python:MODULE.CLASS`` names.

    Parameters
    ----------
    path : str
        The path with its prefix.
    what : str
        The kind of class, for errors.
    method : str
        The method that it must have.

    Raises
    ------
    UnsupportedError
        When it cannot be imported or is not such a class.
    """
    module, _, name = path.removeprefix(PREFIX).rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # whatever the module does when it is imported
        rule = "cannot be imported as python:MODULE.CLASS"
        raise UnsupportedError(f"{what} {path!r} {rule}: {error}") from None
    if not (isinstance(found, type) and callable(getattr(found, method, None))):
        raise UnsupportedError(f"{what} {path!r} must be a class with a method {method}")
    return found


def path_of(made: object) -> str:
    """Return ``python:MODULE.CLASS`` of the class of an object."""
    kind = type(made)
    return f"{PREFIX}{kind.__module__}.{kind.__qualname__}"


def modules_in(texts: Iterable[object]) -> frozenset[str]:
    """Return the modules named as ``python:MODULE.CLASS`` in these texts."""
    named = re.compile(rf"{PREFIX}([\w.]+)\.\w+")
    return frozenset(module for text in texts for module in named.findall(str(text)))


def own_traceback(error: BaseException, texts: Iterable[object]) -> list[traceback.FrameSummary]:
    """Return the part of a traceback that begins in the user's module or in a plugin.

    It is empty if there is none: the error is Dovetail's own.

    Parameters
    ----------
    error : BaseException
        The error.
    texts : iterable
        Texts that name the user's classes.
    """
    modules, packages = modules_in(texts), {each.top_package for each in others()}
    frame = error.__traceback__
    while frame:
        name = str(frame.tb_frame.f_globals.get("__name__"))
        if name in modules or name.partition(".")[0] in packages:
            break
        frame = frame.tb_next
    return list(traceback.extract_tb(frame))
