"""Run a command with its kernel launches intercepted."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import get_args

from dovetail.isolation.assemble import find_ptxas
from dovetail.isolation.interception import (
    InterceptionError,
    Priority,
    assembler,
    environment,
    library,
)


def main() -> None:
    """Replace this process with the command."""
    parser = argparse.ArgumentParser(prog="python -m dovetail.isolation.interception")
    parser.add_argument("socket", type=Path, help="socket of the GPU's scheduler")
    parser.add_argument("priority", choices=get_args(Priority))
    parser.add_argument("--kept", type=Path, help="folder for the PTX of Triton's kernels")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    ptxas = find_ptxas()
    try:
        if not given.command:
            parser.error("no command")
        keeper = assembler(given.kept.absolute(), ptxas) if given.kept and ptxas else None
        added = environment(library(), given.socket.absolute(), given.priority, os.environ, keeper)
        os.execvpe(given.command[0], given.command, os.environ | added)
    except (InterceptionError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
