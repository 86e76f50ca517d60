"""Facts about what is simulated, for tables and pages: names and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from dovetail.instances._record import listed
from dovetail.instances.reading.raw_files import LIBRARY
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
    setup, load = asked.setup, asked.load
    exact = "the true slowdowns: no policy ever errs in its predictions"
    found = {
        "trace": _trace_text(setup.trace, len(asked.whole)),
        "note": "; ".join(asked.whole.notes),
        "cluster": _cluster_text(setup.world),
        "world": _world_text(asked.source, setup.world),
        "run times": _times_text(asked.measured_on, asked.reference),
        "load": _load_text(load, setup.sample),
        "drawn": _drawn_text(asked),
        "beliefs": exact if beliefs == "exact" else beliefs,
        "rules": _rules_text(setup.options),
        "warning": _warning(load, runs),
    }
    return {name: line for name, line in found.items() if line}


def _warning(load: float | None, runs: Sequence[RunResult]) -> str:
    """Return why the policies' results say little; empty if they do."""
    if load is not None and load > _OVERLOAD:
        return (
            f"jobs ask for {load:.2g} x the work the GPUs can do, so the queue only grows, and "
            "waits depend on where the trace ends: --load 0.9 spreads the arrivals"
        )
    for metrics in (run.summary for run in runs):
        waited = metrics["queueing_mean_s"] / metrics["jct_mean_s"]
        if max(waited, metrics["slowdown_mean"] - 1) < _HARDLY:
            cure = "a higher --load" if load is None or load < 1 else "more jobs"
            rule = "nothing ever waits, so policies hardly differ"
            return f"{rule}: give fewer --nodes, or {cure}"
    return ""


def _trace_text(trace: Trace, whole: int) -> str:
    jobs = number(len(trace), "job")
    part = "" if len(trace) == whole else f" of {whole:,}"
    asked = trace.gpu_seconds / HOUR_S
    hours = f"{f'{asked:.2g}' if asked < 10 else fixed(asked, 0)} GPU hours of work"
    span = duration(float(trace.columns.arrival_s[-1]))
    return f"{trace.name}: {jobs}{part}, {hours}, arriving over {span}"


def _cluster_text(world: Instance) -> str:
    kinds = listed(gpus_of_models(world))
    gpus = number(len(world.places), "GPU")
    return f"{gpus} ({kinds}) in {number(len(world.cluster.nodes), 'node')}"


def _world_text(source: str | None, world: Instance) -> str:
    workloads = number(len(world.workloads), "workload")
    if source is None:
        return f"synthetic, {workloads}: nothing in it was measured"
    known = _with_numbers(world.slowdowns)
    pairs = len(known.row)
    measured_all = _of_source(known, "measured") == len(known)
    origin = "" if measured_all or not source.startswith(LIBRARY) else ", none of them measured"
    return f"{source}: {workloads}, {pairs:,} slowdowns of pairs{origin}{_alone_text(world)}"


def _with_numbers(known: Slowdowns) -> Slowdowns:
    sets = [k for k, entry in known.sets.items() if entry.slowdown is not None]
    return known.select(known.may_share, sets)


def _of_source(known: Slowdowns, source: Source) -> int:
    """Return how many entries have a source."""
    pairs = np.count_nonzero(known.source == SOURCES.index(source))
    return int(pairs) + sum(entry.source == source for entry in known.sets.values())


def _alone_text(world: Instance) -> str:
    """Return how many workloads never share, and how many slowdowns are estimates."""
    known = _with_numbers(world.slowdowns)
    sharing = known.used()
    if not sharing:
        return "; no two workloads may share"
    alone = len(world.workloads) - len(sharing)
    text = f"; {alone:,} of the workloads have no pair and never share" if alone else ""
    estimates = _of_source(known, "estimate")
    return f"{text}; {number(estimates, 'estimate')} without a bound" if estimates else text


def _times_text(measured_on: str, reference: str) -> str:
    """Return a phrase naming the GPU model for which the run times of the trace hold."""
    if measured_on.casefold() == reference.casefold():
        return f"hold on {measured_on}"
    return f"hold on {measured_on}; used for {reference} too, where they are not known"


def _load_text(load: float | None, sample: int | None) -> str:
    if load is None:
        return "all jobs arrive at once"
    about = "" if sample is None else "about "
    return f"{about}{load:.2f} x the work the GPUs can do while jobs arrive"


def _drawn_text(asked: SimulationRequest) -> str:
    """Return the properties that seeds draw because the trace lacks them."""
    setup, unknown, without = asked.setup, asked.unknown, asked.without_gsla
    foreign = sum(name is not None for name in unknown)
    parts = []
    if setup.sample:
        parts.append(f"a sample of {number(setup.sample, 'job')}")
    if unknown:
        which = f" ({foreign:,} of them name workloads unknown to the world)" if foreign else ""
        parts.append(f"workloads of {number(len(unknown), 'job')}{which}")
    if without:
        parts.append(f"gSLAs of {number(without, 'job')} ({setup.gslas})")
    return ", ".join(parts)


def _rules_text(rules: Options) -> str:
    parts = ["decisions at every event" if not rules.round_s else f"rounds of {rules.round_s:g} s"]
    parts.append(f"restore {rules.restart_s:g} s")
    if math.isfinite(rules.node_mtbf_s):
        hours, repair = rules.node_mtbf_s / HOUR_S, rules.repair_s / HOUR_S
        parts.append(f"a node fails every {hours:g} h and is back after {repair:g} h")
    if rules.estimate_error:
        parts.append(f"run times known to an error of {rules.estimate_error:g} (log)")
    return ", ".join(parts)
