"""Calls of our functions in a child process.

This is for libraries that cannot be loaded together. Run as a module, it reads a pickled (module,
function, arguments) from standard input and writes the pickled outcome.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress

from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.instances._children import module_command
from dovetail.instances.errors import DovetailError
from dovetail.solver.backends.interruptible import interruptible

_LATE_S = 1.0
"""Seconds in addition to the budget, for the process to start and read its input."""


def call(module: str, function: str, *arguments: object, budget: Budget = UNLIMITED) -> object:
    """Return ``module.function(*arguments)``, computed in a child process.

    The result is None if that takes longer than the budget, or if an interrupt ends the process.

    Raises
    ------
    DovetailError
        The error that the function raised, or that the process failed.
    """
    asked = pickle.dumps((module, function, arguments))
    # In its own session, so that its child processes end with it.
    child = subprocess.Popen(
        module_command("dovetail.solver.backends.child_process"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    ended: list[bool] = []

    def end() -> None:
        ended.append(True)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    answer = interruptible(lambda: child.communicate(asked), budget.earlier(-_LATE_S), end)
    if ended or answer is None:
        return None
    stdout, stderr = answer
    if child.returncode:
        last = stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise DovetailError(f"the solver's process failed: {''.join(last)}")
    outcome: object = pickle.loads(stdout)
    if isinstance(outcome, DovetailError):
        raise outcome
    return outcome


def _serve() -> None:
    # Some solvers print to standard output, compiled ones without ``sys.stdout``; the parent must
    # read only the answer.
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
