"""Run one workload on one device on command, and report its progress.

A standalone program that needs PyTorch only::

    python -I worker.py NAME_OR_FILE [--device cuda|cpu] [--size full|tiny] [--seed N]

Commands are lines of JSON on standard input, events are lines of JSON on standard output, and other
output goes to standard error; with ``--socket PATH``, commands and events use that UNIX socket.
``docs/reference/workloads.md`` describes the protocol.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = "dovetail_workloads"
"""Package name of this folder, so that its modules do not hide others of the same names."""


def imported(name: str) -> ModuleType:
    """Import a module of this folder as part of that package."""
    init = Path(__file__).resolve().with_name("__init__.py")
    if PACKAGE not in sys.modules:
        found = [str(init.parent)]
        spec = importlib.util.spec_from_file_location(
            PACKAGE, init, submodule_search_locations=found
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PACKAGE])
    return importlib.import_module(f"{PACKAGE}.{name}")


if __name__ == "__main__":
    imported("session").main(sys.argv[1:])
