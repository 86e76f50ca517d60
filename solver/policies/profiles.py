"""What policies read from the solo profiles of workloads."""

from __future__ import annotations

import numpy as np

from dovetail.instances._record import field_path
from dovetail.instances.errors import InputError
from dovetail.instances.instance import METRICS
from dovetail.solver.policies.state import State


def utilisation(state: State, workload: int) -> float:
    """Return a workload's GPU utilisation alone: ``gpu_util``, or else ``sm_active``.

    Raises
    ------
    InputError
        When it has neither.
    """
    metrics = state.workloads[workload].metrics
    if metrics is not None:
        for known in (metrics.gpu_util, metrics.sm_active):
            if known is not None:
                return known
    path = field_path(field_path("workloads", state.names[workload]), "metrics")
    raise InputError("the policy needs gpu_util or sm_active", path)


def similarities(state: State) -> list[list[float]]:
    """Return the cosine similarity of the metric vectors of every two workloads, in [0, 1].

    The vectors hold the metrics that every workload has, each over its largest value.

    Raises
    ------
    InputError
        When no metric is known of all workloads.
    """
    rows = [[getattr(w.metrics, name, None) for name in METRICS] for w in state.workloads]
    table = np.array(rows, dtype=float)
    table = table[:, ~np.isnan(table).any(axis=0)]
    if not table.size:
        raise InputError("the policy needs a metric that every workload has", "workloads")
    table = table / np.maximum(table.max(axis=0), np.finfo(float).tiny)
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    table = table / np.where(lengths > 0, lengths, 1.0)
    found: list[list[float]] = (table @ table.T).tolist()
    return found
