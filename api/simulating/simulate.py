"""``dovetail simulate``: a trace of jobs under one policy."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dovetail.simulating.options import CHART_HOURS, SIMULATED, SIMULATION_SEED
from dovetail.toolkit.commands import FIGURES, REPORT, Command, option
from dovetail.toolkit.files import print_either
from dovetail.toolkit.progress import counting, working
from dovetail.toolkit.tables import TableColumn, fact_lines, stacked, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.executor.simulation.results import RunResult

SIMULATE: Final = Command(
    "simulate",
    "Simulate a trace of jobs under a policy.",
    "dovetail.simulating.simulate:simulate",
    (
        *SIMULATED,
        option(
            "--policy P",
            "NAME or NAME:OPTION=VALUE,... of docs/reference/policies.md; "
            "python:MODULE.CLASS or LABEL=python:MODULE.CLASS for one of your own",
            default="dovetail",
        ),
        SIMULATION_SEED,
        option("-o, --output FOLDER", "write metrics, jobs, series and stays here"),
        REPORT,
        FIGURES,
        CHART_HOURS,
    ),
)


def simulate(options: Namespace) -> int:
    """Run a trace under one policy; print the metrics, store the run."""
    from dovetail.executor.simulation.results import RunResult, prepare
    from dovetail.simulating.facts import facts
    from dovetail.simulating.outputs import (
        check_places,
        compile_ahead,
        draw_runs,
        finite_metrics,
        print_places,
    )
    from dovetail.simulating.setup import request
    from dovetail.solver.policies.registry import policy_label, policy_named

    policy = policy_named(options.policy)
    check_places(options)
    if options.output:
        prepare(options.output)
    asked = request(options)
    with working("drawing the scenario"):
        scenario = asked.setup.scenario(options.seed)
    scenario.require_possible()
    jobs = len(scenario.trace)
    compile_ahead([options.policy], jobs)
    with counting("simulating") as show:
        history = scenario.simulate(
            policy,
            None if show is None else lambda ended: show("jobs that have ended", ended, jobs),
        )
    result = RunResult.of(policy_label(options.policy), options.seed, history, scenario.trace)
    if options.output:
        result.write(options.output)
    told = facts(asked, options.beliefs, [result])
    draw_runs([result], asked.setup, options, told)
    data = {
        "policy": result.policy,
        "seed": result.seed,
        "simulated": True,
        "facts": told,
        "metrics": finite_metrics(result.summary),
    }
    print_either(options, data, lambda: run_view(result, told))
    if not options.json:
        print_places(options)
    return 0


def run_view(result: RunResult, facts: Mapping[str, str]) -> RenderableType:
    """Return the metrics of one run, with facts about it."""
    from dovetail.executor.simulation.metrics import METRICS
    from dovetail.simulating.outputs import SIMULATED_NOTE
    from dovetail.simulating.tables import SIZE_METRICS
    from dovetail.simulating.units import measured

    head = ("policy", f"{result.policy}, seed {result.seed}")
    known = {name: value for name, value in result.summary.items() if not math.isnan(value)}
    sizes = known.keys() & set(SIZE_METRICS)
    # If all jobs are of one size, its mean is that of all.
    left_out = {"events"} | (sizes if len(sizes) == 1 else set())
    rows, above = [], ""
    for name, value in known.items():
        if name not in left_out:
            label, meaning = METRICS[name].label, METRICS[name].meaning
            shown = "" if meaning in (above, label) else meaning
            rows.append((label, measured(name, value), shown))
            above = meaning
    columns = (TableColumn("metric", folds=True), "", TableColumn("meaning", folds=True))
    return stacked(fact_lines(head, *facts.items(), ("", SIMULATED_NOTE)), "", table(columns, rows))
