"""Outputs that must not be what a command reads: one would destroy the other."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dovetail.instances.errors import InputError, source_name


def require_separate(read: Iterable[str | Path], *outputs: str | None) -> None:
    """Refuse outputs that are an input, or each other; ``-`` is another thing for each.

    Parameters
    ----------
    read : iterable of str or path
        The inputs.
    outputs : str or None
        Where to write, None where nothing is.

    Raises
    ------
    InputError
        Naming the output.
    """
    seen = {_place(name) for name in read if str(name) != "-"}
    for name in filter(None, outputs):
        if _place(name) in seen:
            raise InputError("is another file of this command, too", "", source_name(name))
        seen.add(_place(name))


def _place(name: str | Path) -> str:
    return "-" if str(name) == "-" else os.path.realpath(name)
