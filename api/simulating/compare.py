"""``dovetail compare``: policies on a trace of jobs, simulated."""

from __future__ import annotations

import math
import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dovetail.instances.errors import InputError, source_name
from dovetail.simulating.options import CHART_HOURS, SIMULATED, SIMULATION_SEED
from dovetail.toolkit.commands import FIGURES, INTERRUPTED, REPORT, Command, option, whole
from dovetail.toolkit.progress import counting
from dovetail.toolkit.tables import Name, TableColumn, console, fact_lines, stacked, table, title

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.executor.simulation.campaign import SimulationCampaign, TaskFailure
    from dovetail.executor.simulation.results import RunResult
    from dovetail.simulating.groups import RunsByPolicy
    from dovetail.simulating.setup import SimulationRequest
    from dovetail.simulating.tables import Mean


def _policies(text: str) -> tuple[str, ...]:
    """Split policies at commas, but not between the options of one."""
    found: list[str] = []
    for part in text.split(","):
        name, equals, rest = part.partition("=")
        if found and equals and ":" not in name and not rest.startswith("python:"):
            found[-1] += f",{part}"
        elif part.strip():
            found.append(part.strip())
    if not found:
        raise ArgumentTypeError(f"must name at least one policy, got {text!r}")
    return tuple(dict.fromkeys(found))


COMPARE: Final = Command(
    "compare",
    "Compare policies on a trace of jobs, simulated.",
    "dovetail.simulating.compare:compare",
    (
        *SIMULATED,
        option(
            "--policies P,P,...",
            "policies, each as in simulate",
            _policies,
            "fifo,ssf,castor,dovetail",
        ),
        option("--baseline P", "compare others with this one (default: fifo, or else the first)"),
        option(
            "--seeds N",
            "run each policy with N seeds (default: 3; 1 if nothing is drawn)",
            whole(1),
        ),
        SIMULATION_SEED._replace(text="the first seed"),
        option("-o, --output FOLDER", "store every run here; stored runs are not repeated"),
        REPORT,
        FIGURES,
        CHART_HOURS,
        option(
            "--jobs N",
            "runs at a time, each in a process (default: one for each core)",
            whole(1),
        ),
    ),
)

BEST: Final = "*"
COLUMNS: Final = {
    "jct_mean_s": "JCT\nmean",
    "jct_p90_s": "JCT\np90",
    "makespan_s": "make-\nspan",
    "queueing_mean_s": "queue\nmean",
    "slowdown_mean": "slow-\ndown",
    "violation_rate": "gSLA\nbroken",
    "gpu_time_h": "GPU\ntime",
    "effective_utilisation": "eff.\nuse",
}
"""Heads of the metrics in the table of policies, without units."""

_DEFAULT_SEEDS: Final = 3
_COMPARISON_FILE: Final = "comparison.json"


def compare(options: Namespace) -> int:
    """Run a trace under several policies and seeds; print, store and draw the results."""
    import tempfile

    from dovetail.executor.simulation.campaign import SimulationCampaign
    from dovetail.simulating.outputs import compile_ahead
    from dovetail.simulating.setup import request

    _check_outputs(options)
    asked = request(options)
    seeds = _seeds(options, asked)
    with ExitStack() as stack:
        folder = options.output or stack.enter_context(tempfile.TemporaryDirectory())
        campaign = SimulationCampaign(asked.setup, options.policies, seeds, Path(folder))
        _refuse_another(campaign)
        compile_ahead(options.policies, len(asked.setup.trace))
        try:
            with counting("simulating") as progress:
                failures = campaign.run(options.jobs or os.cpu_count() or 1, progress)
        except KeyboardInterrupt:
            return _interrupted(campaign, options)
        return _finished(campaign, failures, asked, options)


def _finished(
    campaign: SimulationCampaign,
    failures: Sequence[TaskFailure],
    asked: SimulationRequest,
    options: Namespace,
) -> int:
    """Write and print a finished comparison; return the exit status."""
    from dovetail.instances.files import write_data
    from dovetail.instances.reading.contents import write_text
    from dovetail.simulating.facts import facts
    from dovetail.simulating.groups import RunsByPolicy, common_seeds
    from dovetail.simulating.outputs import draw_runs, print_places

    runs = campaign.results(tables=False)
    groups = RunsByPolicy.of(runs, options.baseline) if common_seeds(runs) else None
    seeds = {"seeds": _seeds_text(campaign.seeds, groups)}
    told = {**facts(asked, options.beliefs, runs), **seeds}
    data = {"setup": campaign.setup_digest, **_comparison_data(groups, runs, failures, told)}
    if options.output:
        write_text(campaign.folder / "results.csv", _csv(runs))
        write_data(data, campaign.folder / _COMPARISON_FILE)
    if (options.report or options.figures) and groups:
        failed = {"failed": "; ".join(_failures_text(failures))} if failures else {}
        draw_runs(campaign.results(), campaign.setup, options, {**told, **failed}, options.baseline)
    if options.json:
        write_data(data, "-")
    elif groups:
        console().print(comparison_view(groups, told))
        print_places(options)
    for line in _failures_text(failures):
        print(f"dovetail: failed: {line}", file=sys.stderr)
    return 1 if failures else 0


def comparison_view(groups: RunsByPolicy, facts: Mapping[str, str]) -> RenderableType:
    """Return means and spreads by policy, the best marked, and factors to the baseline."""
    from dovetail.simulating.outputs import SIMULATED_NOTE
    from dovetail.simulating.tables import best_line, metric_columns

    names = ", ".join(group.policy for group in groups.every)
    spread = "; ±: standard deviation over seeds" if len(groups.seeds) > 1 else ""
    columns = metric_columns(groups, [*COLUMNS])
    heads = [f"{head}\n{c.unit}" for head, c in zip(COLUMNS.values(), columns, strict=True)]
    return stacked(
        fact_lines(("compared", names), *facts.items(), ("", SIMULATED_NOTE)),
        title(f"means ({BEST} best{spread})\n"),
        _by_policy(groups, heads, [[*map(_mean_text, column.means)] for column in columns]),
        *(_gains(groups) if len(groups.every) > 1 else ()),
        f"\n{best_line(groups)}",
    )


def _mean_text(mean: Mean) -> str:
    """Return the mean, and below it the spread if there is any."""
    text = f"{BEST if mean.best else ''}{mean.mean}"
    spread = mean.spread.replace(" ", "")
    return f"{text}\n{spread}" if spread.strip("±0.") else text


def _gains(groups: RunsByPolicy) -> Iterator[RenderableType]:
    """Yield the factors to the baseline, without metrics for which no other policy has one."""
    from dovetail.simulating.groups import gain
    from dovetail.simulating.units import three_digits

    base = groups.baseline
    gains = {metric: [gain(group, base, metric) for group in groups.every] for metric in COLUMNS}
    others = [k for k, group in enumerate(groups.every) if group is not base]
    known = [m for m in COLUMNS if any(math.isfinite(gains[m][k]) for k in others)]
    columns = [[*map(three_digits, gains[metric])] for metric in known]
    yield title(f"how many times better than {base.policy} (below 1: worse)\n")
    yield _by_policy(groups, [COLUMNS[metric] for metric in known], columns)


def _by_policy(
    groups: RunsByPolicy, heads: Sequence[str], columns: Sequence[Sequence[str]]
) -> RenderableType:
    rows = zip(groups.every, *columns, strict=True)
    cells = ((Name(group.policy), *figures) for group, *figures in rows)
    return table((TableColumn("policy", folds=True), *heads), cells)


def _seeds_text(seeds: Sequence[int], groups: RunsByPolicy | None) -> str:
    """Return the seeds over which means are taken, and those that are left out."""
    compared = groups.seeds if groups else ()
    left = ", ".join(str(seed) for seed in seeds if seed not in compared)
    line = ", ".join(map(str, compared)) or "none for which all policies have a run"
    return f"{line} (left out, since a policy failed: {left})" if left else line


def _failures_text(failures: Sequence[TaskFailure]) -> Iterator[str]:
    """Yield a line for each policy and reason of failure, with all its seeds."""
    from dovetail.solver.policies.registry import policy_label

    seeds: dict[tuple[str, str], list[int]] = {}
    for each in failures:
        label = policy_label(each.task.policy)
        seeds.setdefault((label, each.reason), []).append(each.task.seed)
    for (policy, reason), failed in seeds.items():
        which = f"seed{'s' if len(failed) > 1 else ''} {', '.join(map(str, sorted(failed)))}"
        yield f"{policy}, {which}: {reason}"


def _check_outputs(options: Namespace) -> None:
    """Refuse options whose results could not be written or shown, before any run."""
    from dovetail.simulating.outputs import check_places
    from dovetail.solver.policies.registry import policy_label

    labels = [policy_label(policy) for policy in options.policies]
    if len(set(labels)) < len(labels):
        raise InputError(f"must have different names, got {', '.join(labels)}", "--policies")
    if options.baseline and options.baseline not in labels:
        known = ", ".join(labels)
        rule = f"must be one of --policies ({known}), got {options.baseline!r}"
        raise InputError(rule, "--baseline")
    check_places(options)
    if options.output:
        _check_folder(Path(options.output))


def _refuse_another(campaign: SimulationCampaign) -> None:
    """Refuse to overwrite the figures of another setup."""
    from dovetail.instances.files import read_data

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


def _comparison_data(
    groups: RunsByPolicy | None,
    runs: Sequence[RunResult],
    failures: Sequence[TaskFailure],
    facts: Mapping[str, str],
) -> dict[str, Any]:
    from dovetail.executor.simulation.metrics import METRICS
    from dovetail.simulating.outputs import finite_metrics
    from dovetail.solver.policies.registry import policy_label

    return {
        "simulated": True,
        "facts": dict(facts),
        "baseline": groups.baseline.policy if groups else None,
        "policies": [
            {
                "policy": group.policy,
                "seeds": len(group.runs),
                "mean": finite_metrics({name: group.mean(name) for name in METRICS}),
                "deviation": finite_metrics({name: group.spread(name) for name in METRICS}),
            }
            for group in (groups.every if groups else ())
        ],
        "runs": [
            {"policy": run.policy, "seed": run.seed, "metrics": finite_metrics(run.summary)}
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


def _csv(runs: Sequence[RunResult]) -> str:
    """Return a row for each policy and seed; a metric that does not exist is an empty cell."""
    import csv
    import io

    from dovetail.executor.simulation.metrics import METRICS
    from dovetail.simulating.outputs import finite_metrics

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("policy", "seed", *METRICS))
    for run in runs:
        metrics = finite_metrics(run.summary).values()
        writer.writerow((run.policy, run.seed, *("" if v is None else v for v in metrics)))
    return text.getvalue()
