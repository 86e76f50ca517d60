"""Run one workload on one device, when it is told to, and tell how far it has come.

A program of its own that needs PyTorch only::

    python -I worker.py NAME_OR_FILE [--device cuda|cpu] [--size full|tiny] [--seed N]

Commands come as lines of JSON on standard input, events go as lines of JSON to standard output,
and whatever else is printed goes to standard error; with ``--socket PATH``, commands and events go
through the UNIX socket of that name. ``docs/workloads.md`` has the protocol.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = "dovetail_workloads"
"""What this folder is imported as, so that its modules' names are in nobody's way."""


def import_session() -> object:
    """Import this folder as a package, wherever it lies and with no path to it, and its session."""
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{PACKAGE}.session")


if __name__ == "__main__":
    import_session().main(sys.argv[1:])  # type: ignore[attr-defined]
