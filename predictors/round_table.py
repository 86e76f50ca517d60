"""Predictions that live from round to round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.instances.instance import Workload
from dovetail.predictors.fits import Split
from dovetail.predictors.predictor import IntArray
from dovetail.predictors.trained import Table, TrainedPredictor


class RoundTable:
    """The table of ``TrainedPredictor.predict_table``, carried from one round to the next.

    A round predicts the pairs of workloads that are new or have changed, and nothing else.

    Parameters
    ----------
    predictor : TrainedPredictor
        What predicts; a newly fitted one needs a new table.
    splits : sequence of Split
        The caps of the job and of its co-runner.
    gpu_model : str, optional
        As in ``TrainedPredictor.predict``.
    """

    def __init__(
        self, predictor: TrainedPredictor, splits: Sequence[Split], gpu_model: str | None = None
    ) -> None:
        self._predictor = predictor
        self._splits = tuple(splits)
        self._gpu_model = gpu_model
        self._workloads: Mapping[str, Workload] = {}
        self._workers: Mapping[str, int] = {}
        self._table: Table | None = None

    def update(
        self, workloads: Mapping[str, Workload], workers: Mapping[str, int] | None = None
    ) -> Table:
        """Return the table of this round's workloads, in their order.

        Parameters
        ----------
        workloads : mapping of str to Workload
            By name; those that are gone are forgotten.
        workers : mapping of str to int, optional
            The largest gang of each workload where it is more than one GPU.

        Raises
        ------
        InputError
            When there is no fit for the GPU model.
        """
        sizes = {} if workers is None else dict(workers)
        cells = replace(self._predictor, workers=sizes).cells(
            workloads, self._splits, self._gpu_model
        )
        table = cells.empty()
        kept = self._kept(workloads, sizes)
        new = np.setdiff1d(np.arange(len(workloads)), kept)
        self._copy(list(workloads), kept, table)
        cells.fill(table, new, np.arange(len(workloads)))
        cells.fill(table, kept, new)
        self._workloads, self._workers, self._table = dict(workloads), sizes, table
        return table

    def _kept(self, workloads: Mapping[str, Workload], workers: Mapping[str, int]) -> IntArray:
        """Return the positions of workloads that are as they were."""
        same = (
            self._workloads.get(name) == workload
            and self._workers.get(name, 1) == workers.get(name, 1)
            for name, workload in workloads.items()
        )
        return np.flatnonzero(np.fromiter(same, dtype=np.bool_, count=len(workloads)))

    def _copy(self, names: Sequence[str], kept: IntArray, table: Table) -> None:
        if self._table is None:
            return
        position = {name: k for k, name in enumerate(self._workloads)}
        earlier = np.array([position[names[k]] for k in kept.tolist()], dtype=np.int64)
        here, there = np.ix_(kept, kept), np.ix_(earlier, earlier)
        table.slowdown[here] = self._table.slowdown[there]
        if table.upper is not None and self._table.upper is not None:
            table.upper[here] = self._table.upper[there]
