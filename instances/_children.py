"""Processes that run our own modules."""

from __future__ import annotations

import os
import sys


def module_command(module: str) -> tuple[str, ...]:
    """Return the command that runs one of our modules as a program.

    ``-P`` keeps the current directory out of Python's path: a file there with the name of a
    library would be run instead of it. Unlike ``PYTHONSAFEPATH``, the option does not affect the
    users' programs that such a process starts.
    """
    return (sys.executable, "-P", "-m", module)


def module_environment() -> dict[str, str]:
    """Return the environment of one of our programs that runs as another user.

    It has only the search paths for programs and modules: ``PYTHONPATH`` may be the only way to
    find a Dovetail that was installed with ``pip install --target``.
    """
    found = {"PATH": os.environ.get("PATH", os.defpath)}
    modules = os.environ.get("PYTHONPATH")
    if modules:
        folders = [os.path.abspath(folder) for folder in modules.split(os.pathsep) if folder]
        found["PYTHONPATH"] = os.pathsep.join(folders)
    return found
