"""From the options of ``dovetail simulate`` and ``compare`` to the setup of a simulation."""

from __future__ import annotations

import math
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dovetail.executor.simulation.beliefs import Beliefs, Exact, Model, beliefs_named
from dovetail.executor.simulation.options import Options
from dovetail.executor.simulation.setup import Setup
from dovetail.executor.simulation.worlds import read_source, synthetic_world, world_of
from dovetail.instances import library
from dovetail.instances._record import listed
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.files import read_dataset
from dovetail.instances.errors import InputError, UnsupportedError, source_name
from dovetail.instances.instance import Instance
from dovetail.instances.reading.contents import LIBRARY
from dovetail.instances.traces.draws import with_gslas
from dovetail.instances.traces.files import kind_of, read_trace
from dovetail.instances.traces.filters import busiest, faster, from_zero, largest, window
from dovetail.instances.traces.kinds import kind_names, require_options, trace_kind
from dovetail.instances.traces.library import library_trace, library_world, trace_names
from dovetail.instances.traces.trace import Trace

HOUR_S = 3600.0

SYNTHETIC_WORKLOADS = 32
DEFAULT_GPUS_PER_NODE = 8
DEFAULT_GPU_MODEL = "V100"
DEFAULT_REPAIR_H = 1.0
DEFAULT_GSLAS = "uniform:1:2"
"""As in TensorShare (section 4.1)."""
_WORLD_FLAGS = {
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "gpu_models": "--gpu-model",
    "gpu_model": "--gpu-model",
}
_READ_FLAGS = {"columns": "--columns", "cores_per_gpu": "--cores-per-gpu"}
_RULE_FLAGS = {
    "round_s": "--round",
    "restart_s": "--restart",
    "node_mtbf_s": "--mtbf",
    "repair_s": "--repair",
    "estimate_error": "--estimate-error",
}


@dataclass(frozen=True)
class SimulationRequest:
    """A setup, and what it was made of.

    Attributes
    ----------
    setup : Setup
        The setup.
    source : str or None
        Where the world is from; None if it is synthetic.
    whole : Trace
        The trace before jobs were selected.
    measured_on, reference : str
        The GPU model for which the run times of the trace hold, and for which they are used.
    load : float or None
        The offered load; None if all jobs arrive at once.
    """

    setup: Setup
    source: str | None
    whole: Trace
    measured_on: str
    reference: str
    load: float | None

    @property
    def unknown(self) -> Sequence[str | None]:
        """The workloads of jobs for which seeds draw others, as the world does not know them."""
        known = self.setup.world.workloads
        return [name for name in self.setup.trace.columns.workload.tolist() if name not in known]

    @property
    def without_gsla(self) -> int:
        """Number of jobs whose gSLAs seeds draw."""
        if self.setup.gslas == "none":
            return 0
        return int(np.isnan(self.setup.trace.columns.gsla).sum())

    @property
    def draws(self) -> bool:
        """Whether results depend on the seed."""
        rules = self.setup.options
        errs = not isinstance(self.setup.beliefs, Exact | Model) or rules.estimate_error > 0
        drawn = self.setup.sample or self.unknown or self.without_gsla
        return bool(drawn) or errs or math.isfinite(rules.node_mtbf_s)


def request(options: Namespace) -> SimulationRequest:
    """Return the setup that the options describe.

    Raises
    ------
    InputError, UnsupportedError
        When an option or a file is wrong; the error names it.
    """
    _require_trace(options.trace)
    source, world = _world(options)
    reference = _reference(world)
    whole, measured_on = _read(options, reference)
    trace = _paced(_filtered(whole, options), world, options)
    setup = Setup(
        trace,
        world,
        gslas=options.gsla or _default_gslas(trace),
        sample=options.sample,
        beliefs=_beliefs(options.beliefs),
        options=_rules(options),
    )
    _check_draws(setup)
    load = _offered_load(trace, world, options.sample)
    return SimulationRequest(setup, source, whole, measured_on, reference, load)


def _require_trace(source: str) -> None:
    """Refuse a trace that does not exist before questions about the cluster are asked."""
    if not (source == "-" or source.startswith(LIBRARY) or os.path.exists(source)):
        raise InputError("cannot be read: no such file or directory", "", source_name(source))


def _check_draws(setup: Setup) -> None:
    jobs = len(setup.trace)
    with _naming("--gsla"):
        with_gslas(setup.trace.take([0]), setup.gslas, 0)
    if setup.sample is not None and setup.sample > jobs:
        rule = f"must be <= {jobs} (the number of jobs), got {setup.sample}"
        raise InputError(rule, "--sample")


def _read(options: Namespace, reference: str) -> tuple[Trace, str]:
    """Return the trace, and the GPU model for which its run times hold."""
    source = options.trace
    if source.startswith(LIBRARY):
        for option in _read_options(options):
            raise InputError(f"is for a trace file, got {source}", _READ_FLAGS[option])
        trace, measured_on = library_trace(source.removeprefix(LIBRARY)), reference
    else:
        trace, measured_on = _read_file(options, reference)
    if not len(trace):
        raise InputError("must have at least one job, got none", "", source_name(source))
    return trace, measured_on


def _read_file(options: Namespace, reference: str) -> tuple[Trace, str]:
    source, kind, given = options.trace, options.format, _read_options(options)
    if kind is not None and kind not in kind_names():
        raise InputError(f"must be one of {', '.join(kind_names())}, got {kind!r}", "--format")
    kind = kind or kind_of(source, *given)
    with _naming(flags=_READ_FLAGS):
        require_options(kind, given)
    measured_on = reference
    if (find := trace_kind(kind).measured_on) is not None:
        measured_on = given["gpu_model"] = find(Path(source), reference)
    return read_trace(source, kind, **given), measured_on


def _read_options(options: Namespace) -> dict[str, Any]:
    """Return the options of ``read_trace`` that are given."""
    columns, cores = dict(options.columns or ()), options.cores_per_gpu
    given = {"columns": columns, "cores_per_gpu": cores}
    return {name: value for name, value in given.items() if value}


def _filtered(trace: Trace, options: Namespace) -> Trace:
    """Return the part of the trace that the options select, with time starting at 0."""
    if options.window:
        start, end = options.window
        if not 0 <= start < end:
            rule = f"must be FROM:TO in hours, 0 <= FROM < TO, got {start:g}:{end:g}"
            raise InputError(rule, "--window")
        trace = window(trace, start * HOUR_S, end * HOUR_S)
    if options.max_workers:
        trace = largest(trace, options.max_workers)
    if options.busiest:
        with _naming("--busiest"):
            trace = busiest(trace, options.busiest)
    if not len(trace):
        raise InputError("must leave at least one job, left none", "--window, --max-workers")
    return from_zero(trace)


def _paced(trace: Trace, world: Instance, options: Namespace) -> Trace:
    """Return the trace with arrivals scaled as the options say."""
    if options.faster is not None:
        if options.load is not None:
            raise InputError("sets how fast jobs arrive already", "--load, --faster")
        with _naming("--faster"):
            return faster(trace, options.faster)
    if options.load is None:
        return trace
    with _naming("--load"):
        if not 0 < options.load < math.inf:
            raise InputError(f"must be a finite number > 0, got {options.load:g}")
        now = _offered_load(trace, world, options.sample)
        if now is None:
            raise InputError("needs jobs that arrive one after the other, but all arrive at once")
        return faster(trace, options.load / now)


@contextmanager
def _naming(flag: str = "", flags: Mapping[str, str] = {}, source: str = "") -> Iterator[None]:
    """Name options instead of arguments in errors: from ``flags``, or else ``flag``."""
    try:
        yield
    except InputError as error:
        place = flags.get(error.path, flag or error.path)
        raise InputError(error.rule, place, source) from None


def _world(options: Namespace) -> tuple[str | None, Instance]:
    """Return the source of the slowdowns (None = synthetic) and the world."""
    source = options.world or _own_world(options.trace)
    models = options.gpu_model
    gpus_per_node = options.gpus_per_node or DEFAULT_GPUS_PER_NODE
    if source is None:
        size = _nodes(options, gpus_per_node), gpus_per_node
        with _naming(flags=_WORLD_FLAGS):
            made = synthetic_world(SYNTHETIC_WORKLOADS, *size, models or (DEFAULT_GPU_MODEL,))
        return None, made
    found = _source(source)
    if isinstance(found, DataSet) and not models and len(found.gpu_models) > 1:
        rule = f"must name one or more of {listed(found.gpu_models)}: {source} has several"
        raise InputError(rule, "--gpu-model")
    asks = options.nodes or options.gpus_per_node or models
    keeps_cluster = isinstance(found, Instance) and not asks
    nodes = None if keeps_cluster else _nodes(options, gpus_per_node)
    with _naming(flags=_WORLD_FLAGS, source=source_name(source)):
        world = world_of(found, nodes, gpus_per_node, models)
    if not world.workloads:
        raise InputError("must have at least one workload, got none", "--world", source)
    return source, world


def _nodes(options: Namespace, gpus_per_node: int) -> int:
    """Return the number of nodes of a cluster that no instance gives; there is no default."""
    if options.nodes is None:
        size = f"{gpus_per_node} GPUs each" + ("" if options.gpus_per_node else " by default")
        raise InputError(f"is required: how many nodes does the cluster have ({size})?", "--nodes")
    nodes: int = options.nodes
    return nodes


def _reference(world: Instance) -> str:
    """Return the first GPU model on which all workloads have speed 1, if possible the cluster's.

    It may be a model that the cluster lacks. If there is none, it is the cluster's first model.
    """
    own = list(gpus_of_models(world))
    named = chain.from_iterable(workload.speed for workload in world.workloads.values())
    for model in dict.fromkeys([*own, *named]):
        if all(workload.speed.get(model, 1.0) == 1.0 for workload in world.workloads.values()):
            return model
    return own[0]


def gpus_of_models(world: Instance) -> Counter[str]:
    """Return the number of GPUs of each model, in the order of the cluster."""
    return Counter(place.gpu.model for place in world.places.values())


def _own_world(trace: str) -> str | None:
    """Return the world that a shipped trace was made for."""
    if not trace.startswith(LIBRARY):
        return None
    library.TRACES.entry(trace.removeprefix(LIBRARY))
    return trace


def _source(source: str) -> Instance | DataSet:
    if not source.startswith(LIBRARY):
        return read_source(source)
    name = source.removeprefix(LIBRARY)
    if name in library.DATA_SETS.manifest:
        return read_dataset(source)
    if name in trace_names():
        return library_world(name)
    if name in library.names():
        return library.load(name)
    known = (*trace_names(), *library.names(), *library.DATA_SETS.manifest)
    raise library.not_shipped(name, known, "a trace, an instance or a data set")


def _default_gslas(trace: Trace) -> str:
    return "none" if np.isfinite(trace.columns.gsla).any() else DEFAULT_GSLAS


def _beliefs(text: str) -> Beliefs:
    try:
        return beliefs_named(text)
    except (InputError, UnsupportedError) as error:
        raise InputError(str(error), "--beliefs") from None


def _rules(options: Namespace) -> Options:
    for flag, hours in (("--mtbf", options.mtbf), ("--repair", options.repair)):
        if hours is not None and not hours > 0:
            raise InputError(f"must be > 0 (hours), got {hours:g}", flag)
    if options.repair is not None and options.mtbf is None:
        raise InputError("needs --mtbf: without it no node fails", "--repair")
    mtbf_s = math.inf if options.mtbf is None else options.mtbf * HOUR_S
    repair_h = DEFAULT_REPAIR_H if options.repair is None else options.repair
    with _naming(flags=_RULE_FLAGS):
        return Options(
            round_s=options.round,
            restart_s=options.restart,
            node_mtbf_s=mtbf_s,
            repair_s=repair_h * HOUR_S,
            estimate_error=options.estimate_error,
        )


def _offered_load(trace: Trace, world: Instance, sample: int | None) -> float | None:
    """Return the ratio of work to GPU capacity until the last arrival; None if all arrive at once.

    For a sample, it is the expected ratio.
    """
    span_s = float(trace.columns.arrival_s[-1])
    if not span_s:
        return None
    part = 1.0 if sample is None else sample / len(trace)
    return part * trace.gpu_seconds / (_pace(trace, world) * span_s)


def _pace(trace: Trace, world: Instance) -> float:
    """Return the work that all GPUs do in a second, without sharing.

    A GPU is weighted by the mean speed of its model over the trace's workloads, or over all
    workloads of the world if some are drawn.
    """
    named = {*trace.columns.workload.tolist()}
    drawn = not named <= world.workloads.keys()
    ran = [each for name, each in world.workloads.items() if drawn or name in named]
    return math.fsum(
        count * fmean(workload.speed.get(model, 1.0) for workload in ran)
        for model, count in gpus_of_models(world).items()
    )
