"""What ``simulate`` and ``compare`` check before a run, and write and draw after it."""

from __future__ import annotations

import math
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dovetail.instances.errors import InputError
from dovetail.toolkit.files import require_separate
from dovetail.toolkit.progress import compiled_ahead, working

if TYPE_CHECKING:
    from dovetail.executor.simulation.results import RunResult
    from dovetail.executor.simulation.setup import Setup

SIMULATED_NOTE: Final = "simulated: none of this was measured on a GPU"


def compile_ahead(policies: Sequence[str], jobs: int) -> None:
    """Compile the engine before simulations of the policy ``dovetail``, which needs it."""
    names = {policy.partition(":")[0] for policy in policies}
    if "dovetail" in names:
        compiled_ahead(jobs)


def draw_runs(
    runs: Sequence[RunResult],
    setup: Setup,
    options: Namespace,
    facts: Mapping[str, str],
    baseline: str | None = None,
) -> None:
    """Write the page and the figures that the options name."""
    from dovetail.instances.reading.contents import write_text
    from dovetail.toolkit.charts import write_figures

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


def print_places(options: Namespace) -> None:
    """Print the files and folders that were written."""
    places = filter(None, (options.output, options.report, options.figures))
    written = [f"-> {Path(place)}" for place in places]
    if written:
        print("", *written, sep="\n")


def check_places(options: Namespace) -> None:
    """Refuse outputs that are inputs, the same file, or cannot be written."""
    from dovetail.toolkit.charts import check_figures

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


def _check_page(page: Path) -> None:
    folder = page.absolute().parent
    if not folder.is_dir():
        raise InputError("must be in a folder that exists", "--report", str(page))
    if page.is_dir():
        raise InputError("must be a file, got a folder", "--report", str(page))
    if not os.access(folder, os.W_OK):
        raise InputError("must be in a folder that can be written", "--report", str(page))


def finite_metrics(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return metrics for JSON and CSV: None if there is no figure, counts as integers."""
    return {name: _plain(name, value) for name, value in metrics.items()}


def _plain(name: str, value: float) -> float | None:
    from dovetail.executor.simulation.metrics import METRICS

    if not math.isfinite(value):
        return None
    return int(value) if METRICS[name].unit == "number" and value.is_integer() else value
