"""Facts about what is simulated, for tables and pages: names and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from dovetail.instances._record import listed
from dovetail.instances.reading.contents import LIBRARY
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import SOURCES, Source
from dovetail.simulating.setup import HOUR_S, SimulationRequest, gpus_of_models
from dovetail.simulating.units import duration, fixed
from dovetail.toolkit.wording import number

if TYPE_CHECKING:
    from dovetail.executor.simulation.options import Options
    from dovetail.executor.simulation.results import RunResult
    from dovetail.instances.instance import Instance
    from dovetail.instances.traces.trace import Trace

_OVERLOAD: Final = 2.0
"""The offered load above which a reader is warned."""

_HARDLY: Final = 0.01
"""The fraction of completion times up to which waiting and slowdowns are ignored."""


def facts(asked: SimulationRequest, beliefs: str, runs: Sequence[RunResult]) -> dict[str, str]:
    """Return what was simulated, with a warning if its results say little."""
    setup, rules, span = asked.setup, asked.setup.options, asked.setup.trace.columns.arrival_s[-1]
    found = {
        "trace": setup.trace.name,
        "jobs": _jobs_text(setup.trace, len(asked.whole)),
        "arrivals": f"over {duration(float(span))}",
        "load": _load_text(asked.load, setup.sample),
        "note": "; ".join(asked.whole.notes),
        "cluster": _cluster_text(setup.world),
        "world": asked.source or "synthetic",
        "workloads": _workloads_text(setup.world),
        "slowdowns": _slowdowns_text(asked.source, setup.world),
        "declared": _declared_text(setup.world),
        "run times": _times_text(asked.measured_on, asked.reference),
        "drawn": _drawn_text(asked),
        "beliefs": "exact: policies know the true slowdowns" if beliefs == "exact" else beliefs,
        "decisions": f"every {rules.round_s:g} s" if rules.round_s else "at every event",
        "restore": f"{rules.restart_s:g} s",
        "failures": _failures_text(rules),
        "estimates": f"error {rules.estimate_error:g} (log)" if rules.estimate_error else "",
        "warning": _warning(asked.load, runs),
    }
    return {name: line for name, line in found.items() if line}


def _warning(load: float | None, runs: Sequence[RunResult]) -> str:
    """Return why the policies' results say little; empty if they do."""
    if load is not None and load > _OVERLOAD:
        return "overload: waits depend on where the trace ends; --load 0.9 spreads the arrivals"
    for metrics in (run.summary for run in runs):
        waited = metrics["queueing_mean_s"] / metrics["jct_mean_s"]
        if max(waited, metrics["slowdown_mean"] - 1) < _HARDLY:
            cure = "a higher --load" if load is None or load < 1 else "more jobs"
            return f"nothing waits, so policies hardly differ: give fewer --nodes, or {cure}"
    return ""


def _jobs_text(trace: Trace, whole: int) -> str:
    part = "" if len(trace) == whole else f" of {whole:,}"
    asked = trace.gpu_seconds / HOUR_S
    hours = f"{asked:.2g}" if asked < 10 else fixed(asked, 0)
    return f"{len(trace):,}{part}, {hours} GPU hours of work"


def _load_text(load: float | None, sample: int | None) -> str:
    if load is None:
        return "all jobs arrive at once"
    about = "" if sample is None else "about "
    return f"{about}{load:.2f} x what the GPUs can do"


def _cluster_text(world: Instance) -> str:
    kinds = listed(gpus_of_models(world))
    gpus = number(len(world.places), "GPU")
    return f"{gpus} ({kinds}) in {number(len(world.cluster.nodes), 'node')}"


def _workloads_text(world: Instance) -> str:
    """Return the number of workloads, and of those that never share."""
    workloads, sharing = len(world.workloads), len(_with_numbers(world.slowdowns).used())
    declared = world.cluster.assumed
    if declared is not None and declared.pair is not None:
        return f"{workloads:,}"
    alone = workloads - sharing
    verb = "shares" if alone == 1 else "share"
    return f"{workloads:,}, {alone:,} never {verb}" if alone else f"{workloads:,}"


def _slowdowns_text(source: str | None, world: Instance) -> str:
    """Return the number of known slowdowns, and how they became known."""
    known = _with_numbers(world.slowdowns)
    estimates = _of_source(known, "estimate")
    measured_all = _of_source(known, "measured") == len(known)
    made_up = source is None or (source.startswith(LIBRARY) and not measured_all)
    return ", ".join(
        filter(
            None,
            (
                number(len(known.row), "pair"),
                number(len(known.sets), "larger set") if known.sets else "",
                "none measured" if made_up else "",
                f"{number(estimates, 'estimate')} without a bound" if estimates else "",
            ),
        )
    )


def _declared_text(world: Instance) -> str:
    """Return the slowdowns that the cluster's owner declares, which are true in a simulation."""
    declared = world.cluster.assumed
    if declared is None:
        return ""
    parts = []
    if declared.pair is not None:
        parts.append(f"{declared.pair:g} for pairs without an entry")
    if declared.sets is not None:
        parts.append("the product of their pairs for larger sets without one")
    return f"{', '.join(parts)}; taken as true (cluster.assumed)"


def _with_numbers(known: Slowdowns) -> Slowdowns:
    sets = [k for k, entry in known.sets.items() if entry.slowdown is not None]
    return known.select(known.may_share, sets)


def _of_source(known: Slowdowns, source: Source) -> int:
    """Return how many entries have a source."""
    pairs = np.count_nonzero(known.source == SOURCES.index(source))
    return int(pairs) + sum(entry.source == source for entry in known.sets.values())


def _times_text(measured_on: str, reference: str) -> str:
    """Return the GPU model for which the run times of the trace hold."""
    if measured_on.casefold() == reference.casefold():
        return f"of {measured_on}"
    return f"of {measured_on}; also for {reference} where none are known"


def _drawn_text(asked: SimulationRequest) -> str:
    """Return the properties that seeds draw because the trace lacks them."""
    setup, unknown, without = asked.setup, asked.unknown, asked.without_gsla
    foreign = sum(name is not None for name in unknown)
    parts = []
    if setup.sample:
        parts.append(f"{number(setup.sample, 'job')} of the trace")
    if unknown:
        which = f" ({foreign:,} unknown to the world)" if foreign else ""
        parts.append(f"workloads of {number(len(unknown), 'job')}{which}")
    if without:
        parts.append(f"gSLAs of {number(without, 'job')} ({setup.gslas})")
    return ", ".join(parts)


def _failures_text(rules: Options) -> str:
    if not math.isfinite(rules.node_mtbf_s):
        return ""
    hours, repair = rules.node_mtbf_s / HOUR_S, rules.repair_s / HOUR_S
    return f"a node every {hours:g} h, back after {repair:g} h"
