"""Run by every Python that a job starts: counts optimizer steps, then runs the job's own module.

Python runs the first ``sitecustomize`` on its path, which is this one; it then runs the next one
on the path. An error here never stops the job.
"""

import importlib
import os
import sys
from importlib.machinery import PathFinder


def _count_steps() -> None:
    try:
        importlib.import_module("dovetail_progress").count_optimizer_steps()
    except Exception as error:
        print("dovetail: steps are not counted:", error, file=sys.stderr)


def _run_the_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "DOVETAIL_PROGRESS" in os.environ:
    _count_steps()
_run_the_next()
