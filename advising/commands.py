"""Carries out ``advise``."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import replace

import numpy as np

from dovetail.advising.cli import ADVISE, Since
from dovetail.advising.reader import read_usage
from dovetail.advising.serving.commands import advise_serving
from dovetail.advising.serving.scenario import is_serving
from dovetail.advising.usage import Omission, UsageRecords, joined, require_jobs
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.toolkit.files import print_either, require_separate
from dovetail.toolkit.progress import working


def advise(options: Namespace) -> int:
    """Read the files and print the advice."""
    if any(map(is_serving, options.files)):
        return advise_serving(options, {each.field: each.usual for each in ADVISE.arguments})
    from dovetail.advising.advice import advice_for
    from dovetail.advising.words import AdviceWords
    from dovetail.advising.work import work_of
    from dovetail.formulations.budget import Budget, OutOfTimeError

    require_separate(options.files, options.report, options.instance)
    names = ", ".join(options.files)
    budget = Budget.of(None if options.time_limit == math.inf else options.time_limit)
    with working("reading the files") as line:
        usage = _read(options)
        require_jobs(len(usage.jobs), usage.left_out, names)
        cards = {name: float(mib) for name, mib in options.gpu_memory}
        work, omissions = work_of(usage, options.gpu_model, cards)
        usage = replace(usage, left_out=(*usage.left_out, *omissions))
        require_jobs(len(work.kind), usage.left_out, names)

        def tell(text: str) -> None:
            line.text = text

        try:
            advice = advice_for(work, options.gsla, budget, tell, options.max_jobs_per_gpu)
        except OutOfTimeError:
            raise UnsupportedError(_time_is_up(options.time_limit)) from None
    words = AdviceWords(advice, usage, options.files, options.cost_per_gpu_hour)
    if options.report:
        from dovetail.advising.report import write_report

        write_report(words, options.report)
    if options.instance:
        from dovetail.instances.files import write_instance

        write_instance(advice.moment.instance, options.instance)
    print_either(options, words.data(), words.view)
    return 0


def _time_is_up(limit_s: float) -> str:
    return f"the time limit of {limit_s:g} s is up before the advice is ready: raise --time-limit"


def _read(options: Namespace) -> UsageRecords:
    usage = joined([read_usage(path, options.form) for path in options.files])
    return _since(usage, options.since) if options.since else usage


def _since(usage: UsageRecords, since: Since) -> UsageRecords:
    """Return what ran after a time; jobs that began before it begin with it."""
    jobs = usage.jobs
    times = jobs[["submit_s", "start_s", "end_s"]].to_numpy()
    if np.isnan(times).all():
        raise InputError("cannot be used: the records have no times", "--since")
    begin = since.at_s if since.ago_s is None else float(np.nanmax(times)) - since.ago_s
    over = (jobs["end_s"] <= begin).to_numpy()
    kept = jobs[~over].reset_index(drop=True)
    kept = kept.assign(start_s=kept["start_s"].clip(lower=begin))
    before = Omission(int(over.sum()), "jobs", f"ended before {since.text}")
    return replace(usage, jobs=kept, left_out=(*usage.left_out, *([before] if over.any() else [])))
