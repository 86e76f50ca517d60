"""Carries out ``advise``."""

from __future__ import annotations

import math
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from dovetail.advising.cli import GivenModel
from dovetail.advising.reader import read_usage
from dovetail.advising.usage import Omission, UsageRecords, joined, require_jobs
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.toolkit.files import print_either, require_separate
from dovetail.toolkit.progress import interrupting, working

_AGO: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def advise(options: Namespace) -> int:
    """Read the files and print the advice."""
    from dovetail.advising.advice import advice_for
    from dovetail.advising.words import AdviceWords
    from dovetail.advising.work import work_of
    from dovetail.formulations.budget import Budget, InterruptibleClock, OutOfTimeError

    require_separate(options.files, options.report)
    names = ", ".join(options.files)
    clock = InterruptibleClock()
    limit = None if options.time_limit == math.inf else options.time_limit
    with working("reading the files") as line:
        usage = _read(options)
        require_jobs(usage, names)
        model, cards = _models(options.gpu_model)
        work, omissions = work_of(usage, model, cards)
        usage = replace(usage, left_out=(*usage.left_out, *omissions))
        if not len(work.kind):
            require_jobs(replace(usage, jobs=usage.jobs.iloc[:0]), names)

        def tell(text: str) -> None:
            line.text = text

        with interrupting(clock):
            try:
                advice = advice_for(work, options.gsla, Budget.of(limit, clock), tell)
            except OutOfTimeError:
                raise UnsupportedError(_time_is_up(options.time_limit)) from None
    words = AdviceWords(advice, usage, options.files, options.cost_per_gpu_hour)
    if options.report:
        from dovetail.advising.report import write_report

        write_report(words, options.report)
    print_either(options, words.data(), words.view)
    return 0


def _time_is_up(limit_s: float) -> str:
    return f"the time limit of {limit_s:g} s is up before the advice is ready: raise --time-limit"


def _read(options: Namespace) -> UsageRecords:
    parts = [read_usage(path, options.form) for path in options.files]
    # What a scheduler says of a job counts before what a series of samples shows.
    parts.sort(key=lambda part: bool(part.jobs["samples"].notna().any()))
    usage = joined(parts)
    return _since(usage, options.since) if options.since else usage


def _models(given: Sequence[GivenModel]) -> tuple[str | None, dict[str, float]]:
    """Return the model of jobs without one, and the memory of models."""
    cards = {each.name: each.memory_mib for each in given if each.memory_mib is not None}
    names = list(dict.fromkeys(each.name for each in given))
    return (names[0] if len(names) == 1 else None), cards


def _since(usage: UsageRecords, text: str) -> UsageRecords:
    """Return what ran after a time; jobs that began before it begin with it."""
    jobs = usage.jobs
    times = jobs[["submit_s", "start_s", "end_s"]].to_numpy()
    if np.isnan(times).all():
        raise InputError("cannot be used: the records have no times", "--since")
    begin = _moment(text, float(np.nanmax(times)))
    over = (jobs["end_s"] <= begin).to_numpy()
    kept = jobs[~over].reset_index(drop=True)
    kept = kept.assign(start_s=kept["start_s"].clip(lower=begin))
    before = Omission(int(over.sum()), "jobs", f"ended before {text}")
    return replace(usage, jobs=kept, left_out=(*usage.left_out, *([before] if over.any() else [])))


def _moment(text: str, last_s: float) -> float:
    """Return a time in seconds since 1970: a date, or a time before the end of the records."""
    ago = _AGO.fullmatch(text)
    if ago:
        return last_s - int(ago[1]) * _UNITS_S[ago[2]]
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        rule = f"must be a time like 2026-11-01 or 30d, got {text!r}"
        raise InputError(rule, "--since") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
