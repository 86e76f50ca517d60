"""Run one workload on one device, when it is told to, and tell how far it has come.

A program of its own that needs PyTorch only::

    python -I worker.py NAME_OR_FILE [--device cuda|cpu] [--size full|tiny] [--seed N]

Commands come as lines of JSON on standard input, events go as lines of JSON to standard output,
and whatever else is printed goes to standard error; with ``--socket PATH``, commands and events go
through the UNIX socket of that name. ``docs/reference/workloads.md`` has the protocol.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = "dovetail_workloads"
"""What this folder is imported as, so that its modules' names are in nobody's way."""


def imported(name: str) -> ModuleType:
    """Import a module of this folder as one of a package, wherever it lies."""
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
