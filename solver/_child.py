"""A call of one of our functions in a process of its own.

For libraries that cannot be loaded together. Run as a module, it reads a pickled
(module, function, arguments) from standard input and writes the pickled outcome.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys

from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.instances._children import module_command
from dovetail.instances.errors import DovetailError

_LATE_S = 1.0
"""What the process may take in addition to the budget: it has to start, and to read its input."""


def call(module: str, function: str, *arguments: object, budget: Budget = UNLIMITED) -> object:
    """Return ``module.function(*arguments)``, computed in a child process.

    None where that takes longer than the budget, or an interrupt ends the process.

    Raises
    ------
    DovetailError
        What the function raised, or that the process failed.
    """
    try:
        child = subprocess.run(
            module_command("dovetail.solver._child"),
            input=pickle.dumps((module, function, arguments)),
            capture_output=True,
            check=False,
            timeout=None if budget.timeout_s is None else budget.timeout_s + _LATE_S,
        )
    except subprocess.TimeoutExpired:
        return None
    if child.returncode and budget.is_interrupted:  # Ctrl-C on a terminal ends the child, too
        return None
    if child.returncode:
        last = child.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise DovetailError(f"the solver's process failed: {''.join(last)}")
    outcome: object = pickle.loads(child.stdout)
    if isinstance(outcome, DovetailError):
        raise outcome
    return outcome


def _serve() -> None:
    # Solvers print to standard output at times, compiled ones past ``sys.stdout``; what the parent
    # reads must be the answer alone.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module, function, arguments = pickle.load(sys.stdin.buffer)
    outcome: object
    try:
        outcome = getattr(importlib.import_module(module), function)(*arguments)
    except DovetailError as error:
        outcome = error
    with out:
        pickle.dump(outcome, out)


if __name__ == "__main__":
    _serve()
