"""Processes that run our own modules."""

from __future__ import annotations

import sys


def module_command(module: str) -> tuple[str, ...]:
    """Return the command that runs one of our modules as a program.

    ``-P`` keeps the current directory out of Python's path: a file there that has the name of a
    library would be run in its place. An option does not reach the programs of users that such a
    process starts; ``PYTHONSAFEPATH`` would.
    """
    return (sys.executable, "-P", "-m", module)
