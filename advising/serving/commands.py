"""Carries out ``advise`` with a file of the serving planner."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from typing import Final

from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.toolkit.files import print_either, require_separate
from dovetail.toolkit.progress import working

_OF_RECORDS: Final[Mapping[str, str]] = {
    "form": "--form",
    "since": "--since",
    "gpu_model": "--gpu-model",
    "gpu_memory": "--gpu-memory",
    "gsla": "--gsla",
    "max_jobs_per_gpu": "--max-jobs-per-gpu",
    "instance": "--instance",
    "cost_per_gpu_hour": "--cost-per-gpu-hour",
}
"""Options that are of records only, by their fields."""


def advise_serving(options: Namespace, usual: Mapping[str, object]) -> int:
    """Read the file and print the plan.

    Parameters
    ----------
    options : Namespace
        The options of ``advise``.
    usual : mapping of str to object
        The values of options that are not given.
    """
    from dovetail.advising.serving.fleet import plans_for
    from dovetail.advising.serving.scenario import read_serving
    from dovetail.advising.serving.words import ServingWords
    from dovetail.formulations.budget import Budget, OutOfTimeError

    path = _only_file(options, usual)
    require_separate(options.files, options.report)
    budget = Budget.of(None if options.time_limit == math.inf else options.time_limit)
    with working("reading the files") as line:
        serving = read_serving(path)

        def tell(text: str) -> None:
            line.text = text

        try:
            plans, reasons = plans_for(serving, budget, tell)
        except InputError as error:
            raise error.at(path) from None
        except OutOfTimeError:
            limit = f"the time limit of {options.time_limit:g} s is up before there is a plan"
            raise UnsupportedError(f"{limit}: raise --time-limit") from None
    words = ServingWords(serving, plans, reasons, path)
    if options.report:
        from dovetail.advising.serving.report import write_serving_report

        write_serving_report(words, options.report)
    print_either(options, words.data(), words.view)
    return 0


def _only_file(options: Namespace, usual: Mapping[str, object]) -> str:
    """Return the file; refuse others beside it, and options of records."""
    if len(options.files) > 1:
        rule = "a file of the format dovetail-serving/1 is read alone"
        raise InputError(f"{rule}, got {len(options.files)} files", "FILE")
    for field, name in _OF_RECORDS.items():
        if getattr(options, field) != usual[field]:
            rule = "cannot be used with a file of the format dovetail-serving/1"
            raise InputError(f"{rule}, which has its own fields", name)
    path: str = options.files[0]
    return path
