"""``dovetail simulate`` and ``dovetail compare``: options in, output out, exit status."""

from __future__ import annotations

import csv
import io
import math
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dovetail.executor.simulation.campaign import SimulationCampaign, TaskFailure
from dovetail.executor.simulation.metrics import METRICS
from dovetail.executor.simulation.results import RunResult, prepare
from dovetail.executor.simulation.setup import Setup
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import read_data, write_data
from dovetail.instances.reading.raw_files import write_text
from dovetail.simulating.groups import RunsByPolicy, common_seeds
from dovetail.simulating.setup import SimulationRequest, request
from dovetail.solver.policies.registry import policy_label, policy_named
from dovetail.toolkit.charts import check_figures, write_figures
from dovetail.toolkit.commands import INTERRUPTED
from dovetail.toolkit.outputs import print_either, require_separate
from dovetail.toolkit.progress import compiled_ahead, counting, working

_DEFAULT_SEEDS = 3
_COMPARISON_FILE = "comparison.json"
_HARDLY = 0.01
"""The fraction of completion times up to which waiting and slowdowns are ignored."""


def simulate(options: Namespace) -> int:
    """Run a trace under one policy; print the metrics, store the run."""
    from dovetail.simulating.text import run_view

    policy = policy_named(options.policy)
    _check_places(options)
    if options.output:
        prepare(options.output)
    asked = request(options)
    with working("drawing the scenario"):
        scenario = asked.setup.scenario(options.seed)
    scenario.require_possible()
    _compile_ahead([options.policy], len(scenario.trace))
    jobs = len(scenario.trace)
    with counting("simulating") as show:
        history = scenario.simulate(
            policy,
            None if show is None else lambda ended: show("jobs that have ended", ended, jobs),
        )
    result = RunResult.of(policy_label(options.policy), options.seed, history, scenario.trace)
    if options.output:
        result.write(options.output)
    facts = {**asked.facts, **_idle_queue([result], asked.load)}
    _draw([result], asked.setup, options, facts)
    view = run_view(result.policy, result.seed, result.summary, facts)
    print_either(options, _run_data(result, facts), view)
    if not options.json:
        _print_places(options)
    return 0


def compare(options: Namespace) -> int:
    """Run a trace under several policies and seeds; print, store and draw the results."""
    _check_outputs(options)
    asked = request(options)
    seeds = _seeds(options, asked)
    with ExitStack() as stack:
        folder = options.output or stack.enter_context(tempfile.TemporaryDirectory())
        campaign = SimulationCampaign(asked.setup, options.policies, seeds, Path(folder))
        _refuse_another(campaign)
        _compile_ahead(options.policies, len(asked.setup.trace))
        try:
            with counting("simulating") as progress:
                failures = campaign.run(options.jobs or os.cpu_count() or 1, progress)
        except KeyboardInterrupt:
            return _interrupted(campaign, options)
        return _finished(campaign, failures, asked, options)


def _compile_ahead(policies: Sequence[str], jobs: int) -> None:
    """Compile the engine before simulations of the policy ``dovetail``, which needs it."""
    names = {policy.partition(":")[0] for policy in policies}
    if "dovetail" in names:
        compiled_ahead(jobs)


def _finished(
    campaign: SimulationCampaign,
    failures: Sequence[TaskFailure],
    asked: SimulationRequest,
    options: Namespace,
) -> int:
    """Write and print a finished comparison; return the exit status."""
    from dovetail.toolkit.tables import console

    runs = campaign.results(tables=False)
    groups = RunsByPolicy.of(runs, options.baseline) if common_seeds(runs) else None
    seeds = {"seeds": _seeds_text(campaign.seeds, groups)}
    facts = {**asked.facts, **seeds, **_idle_queue(runs, asked.load)}
    data = {"setup": campaign.setup_digest, **_comparison_data(groups, runs, failures, facts)}
    if options.output:
        write_text(campaign.folder / "results.csv", _csv(runs))
        write_data(data, campaign.folder / _COMPARISON_FILE)
    if (options.report or options.figures) and groups:
        failed = {"failed": "; ".join(_failures_text(failures))} if failures else {}
        _draw(campaign.results(), campaign.setup, options, {**facts, **failed}, options.baseline)
    if options.json:
        write_data(data, "-")
    elif groups:
        from dovetail.simulating.text import comparison_view

        console().print(comparison_view(groups, facts))
        _print_places(options)
    for line in _failures_text(failures):
        print(f"dovetail: failed: {line}", file=sys.stderr)
    return 1 if failures else 0


def _idle_queue(runs: Sequence[RunResult], load: float | None) -> Mapping[str, str]:
    """Return a warning if jobs neither wait nor slow each other down: policies hardly differ."""
    for metrics in (run.summary for run in runs):
        waited = metrics["queueing_mean_s"] / metrics["jct_mean_s"]
        if max(waited, metrics["slowdown_mean"] - 1) < _HARDLY:
            cure = "a higher --load" if load is None or load < 1 else "more jobs"
            rule = "nothing ever waits, so policies hardly differ"
            return {"warning": f"{rule}: give fewer --nodes, or {cure}"}
    return {}


def _seeds_text(seeds: Sequence[int], groups: RunsByPolicy | None) -> str:
    """Return the seeds over which means are taken, and those that are left out."""
    compared = groups.seeds if groups else ()
    left = ", ".join(str(seed) for seed in seeds if seed not in compared)
    line = ", ".join(map(str, compared)) or "none for which all policies have a run"
    return f"{line} (left out, since a policy failed: {left})" if left else line


def _failures_text(failures: Sequence[TaskFailure]) -> Iterator[str]:
    """Yield a line for each policy and reason of failure, with all its seeds."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for each in failures:
        label = policy_label(each.task.policy)
        seeds.setdefault((label, each.reason), []).append(each.task.seed)
    for (policy, reason), failed in seeds.items():
        which = f"seed{'s' if len(failed) > 1 else ''} {', '.join(map(str, sorted(failed)))}"
        yield f"{policy}, {which}: {reason}"


def _draw(
    runs: Sequence[RunResult],
    setup: Setup,
    options: Namespace,
    facts: Mapping[str, str],
    baseline: str | None = None,
) -> None:
    """Write the page and the figures that the options name."""
    if not (options.report or options.figures):
        return
    from dovetail.simulating.report import simulation_charts, simulation_page

    cluster, hours = setup.world.cluster, options.chart_hours
    with working("drawing"):
        if options.report:
            page = simulation_page(runs, setup.trace.name, facts, cluster, baseline, hours)
            write_text(options.report, page)
        if options.figures:
            write_figures(options.figures, simulation_charts(runs, cluster, baseline, hours))


def _print_places(options: Namespace) -> None:
    """Print the files and folders that were written."""
    places = filter(None, (options.output, options.report, options.figures))
    written = [f"-> {Path(place)}" for place in places]
    if written:
        print("", *written, sep="\n")


def _check_outputs(options: Namespace) -> None:
    """Refuse options whose results could not be written or shown, before any run."""
    labels = [policy_label(policy) for policy in options.policies]
    if len(set(labels)) < len(labels):
        raise InputError(f"must have different names, got {', '.join(labels)}", "--policies")
    if options.baseline and options.baseline not in labels:
        known = ", ".join(labels)
        rule = f"must be one of --policies ({known}), got {options.baseline!r}"
        raise InputError(rule, "--baseline")
    _check_places(options)
    if options.output:
        _check_folder(Path(options.output))


def _check_places(options: Namespace) -> None:
    """Refuse outputs that are inputs, the same file, or cannot be written."""
    read = (options.trace, *filter(None, [options.world]))
    require_separate(read, options.output, options.report, options.figures)
    for flag, place in (("--output", options.output), ("--report", options.report)):
        if place == "-":
            raise InputError("must be a name, got '-': --json prints all metrics", flag)
    if options.chart_hours and not 0 <= options.chart_hours[0] < options.chart_hours[1] < math.inf:
        start, end = options.chart_hours
        rule = f"must be FROM:TO in hours, 0 <= FROM < TO, got {start:g}:{end:g}"
        raise InputError(rule, "--chart-hours")
    if options.report:
        _check_page(Path(options.report))
    check_figures(options.figures)


def _refuse_another(campaign: SimulationCampaign) -> None:
    """Refuse to overwrite the figures of another setup."""
    place = campaign.folder / _COMPARISON_FILE
    if not place.is_file():
        return
    kept = read_data(place)
    if not isinstance(kept, dict) or kept.get("setup") != campaign.setup_digest:
        rule = (
            "contains a comparison with another trace, world, beliefs or options (except policies "
            "and seeds): name a new folder"
        )
        raise InputError(rule, "--output", source_name(campaign.folder))


def _check_page(page: Path) -> None:
    folder = page.absolute().parent
    if not folder.is_dir():
        raise InputError("must be in a folder that exists", "--report", str(page))
    if page.is_dir():
        raise InputError("must be a file, got a folder", "--report", str(page))
    if not os.access(folder, os.W_OK):
        raise InputError("must be in a folder that can be written", "--report", str(page))


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError("must be a folder, got a file", "--output", source_name(folder))
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "runs").is_dir():
        rule = "holds something other than a comparison: name a new folder"
        raise InputError(rule, "--output", source_name(folder))


def _seeds(options: Namespace, asked: SimulationRequest) -> tuple[int, ...]:
    """Return the seeds to run; by default only one if another would change nothing."""
    count = options.seeds or (_DEFAULT_SEEDS if asked.draws else 1)
    return tuple(range(options.seed, options.seed + count))


def _interrupted(campaign: SimulationCampaign, options: Namespace) -> int:
    done = sum(map(campaign.is_done, campaign.tasks))
    how = (
        f"the same command continues after {done} of {len(campaign.tasks)} runs"
        if options.output
        else "with -o FOLDER finished runs are stored, and the same command continues from there"
    )
    print(f"dovetail: interrupted: {how}", file=sys.stderr)
    return INTERRUPTED


def _run_data(result: RunResult, facts: Mapping[str, str]) -> dict[str, object]:
    return {
        "policy": result.policy,
        "seed": result.seed,
        "simulated": True,
        "facts": dict(facts),
        "metrics": _finite(result.summary),
    }


def _comparison_data(
    groups: RunsByPolicy | None,
    runs: Sequence[RunResult],
    failures: Sequence[TaskFailure],
    facts: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "simulated": True,
        "facts": dict(facts),
        "baseline": groups.baseline.policy if groups else None,
        "policies": [
            {
                "policy": group.policy,
                "seeds": len(group.runs),
                "mean": _finite({name: group.mean(name) for name in METRICS}),
                "deviation": _finite({name: group.spread(name) for name in METRICS}),
            }
            for group in (groups.every if groups else ())
        ],
        "runs": [
            {"policy": run.policy, "seed": run.seed, "metrics": _finite(run.summary)}
            for run in runs
        ],
        "failed": [
            {
                "policy": policy_label(each.task.policy),
                "seed": each.task.seed,
                "reason": each.reason,
            }
            for each in failures
        ],
    }


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return metrics for JSON and CSV: None if there is no figure, counts as integers."""
    return {name: _plain(name, value) for name, value in metrics.items()}


def _plain(name: str, value: float) -> float | None:
    if not math.isfinite(value):
        return None
    return int(value) if METRICS[name].unit == "number" and value.is_integer() else value


def _csv(runs: Sequence[RunResult]) -> str:
    """Return a row for each policy and seed; a metric that does not exist is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("policy", "seed", *METRICS))
    for run in runs:
        metrics = _finite(run.summary).values()
        writer.writerow((run.policy, run.seed, *("" if v is None else v for v in metrics)))
    return text.getvalue()
