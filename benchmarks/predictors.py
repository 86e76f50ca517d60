"""Accuracy and speed of the analytic predictor on public measurements.

Reads ``lucid/`` and ``miso/`` of ``../shared/data`` next to the checkout (they are not part of
the project, their licences differ) and prints the figures of
``docs/internals/predictor-analytic.md``. Run it as ``python benchmarks/predictors.py``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from dovetail.instances.instance import Workload
from dovetail.instances.metrics import Metrics
from dovetail.predictors import UNCAPPED, AnalyticPredictor

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TENTHS = np.arange(10, 100, 10)

Row = dict[str, str]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Average = Callable[[FloatArray], np.floating]


def main() -> None:
    if DATA.is_dir():
        report_lucid()
        report_miso()
    else:
        print(f"no data in {DATA} (python benchmarks/fetch_data.py fetches it): only the speed")
    report_speed()


def report_lucid() -> None:
    """Print the errors for uncapped pairs on an RTX 3090."""
    pairs = lucid_pairs()
    shares = np.full_like(pairs.members, UNCAPPED)
    analytic = AnalyticPredictor().predict(named(pairs.workloads), pairs.members, shares).slowdown
    models = pairs.models[pairs.members]
    print(f"lucid: {pairs.slowdown.size} slowdowns of {len(pairs.members)} pairs")
    print_error("no contention (1)", np.ones_like(analytic), pairs.slowdown)
    print_error("constant (mean)", held_out(models, pairs.slowdown, np.mean), pairs.slowdown)
    print_error("constant (median)", held_out(models, pairs.slowdown, np.median), pairs.slowdown)
    print_error("analytic", analytic, pairs.slowdown)
    print_rank(analytic, pairs.slowdown)


def report_miso() -> None:
    """Print the errors for jobs alone on a part of an A100."""
    slices = miso_slices()
    analytic = AnalyticPredictor().alone(slices.workloads, slices.caps)
    chosen = analytic[np.arange(len(slices.workloads)), np.arange(len(slices.caps))]
    print(f"miso: {len(slices.caps)} slowdowns alone on a MIG slice")
    print_error("no cost (1)", np.ones_like(chosen), slices.slowdown)
    constant = np.empty_like(slices.slowdown)
    for cap in np.unique(slices.caps):
        rows = slices.caps == cap
        models = slices.models[rows, np.newaxis]
        constant[rows] = held_out(models, slices.slowdown[rows], np.mean)
    print_error("constant per slice", constant, slices.slowdown)
    print_error("analytic", chosen, slices.slowdown)
    print_rank(chosen, slices.slowdown)


def report_speed(count: int = 1000) -> None:
    """Print the time for every pair of ``count`` workloads at nine splits."""
    workloads = random_workloads(count)
    first, second = np.triu_indices(count)
    members = np.tile(np.stack([first, second], axis=1), (len(TENTHS), 1))
    caps = np.repeat(TENTHS, len(first))
    shares = np.stack([caps, 100 - caps], axis=1)
    start = perf_counter()
    prediction = AnalyticPredictor().predict(named(workloads), members, shares)
    seconds = perf_counter() - start
    print(f"speed: {len(prediction.slowdown):,} rows ({count} workloads) in {seconds:.2f} s")


class Pairs(NamedTuple):
    """Measured pairs; ``members`` and ``slowdown`` have shape (rows, 2)."""

    workloads: list[Workload]
    models: NDArray[np.str_]
    members: IntArray
    slowdown: FloatArray


class Slices(NamedTuple):
    """Measured runs alone on a part of a GPU, one workload, cap and slowdown a run."""

    workloads: list[Workload]
    models: NDArray[np.str_]
    caps: IntArray
    slowdown: FloatArray


def lucid_pairs() -> Pairs:
    solo = {lucid_key(row, ""): row for row in rows_of(DATA / "lucid" / "single_data.csv")}
    position = {key: k for k, key in enumerate(solo)}
    together = list(rows_of(DATA / "lucid" / "colocate_info.csv"))
    members = [[position[lucid_key(row, side)] for side in "12"] for row in together]
    speeds = [[float(row["speed" + side]) for side in "12"] for row in together]
    return Pairs(
        [profile(row["gpu_util"], row["gmem_util"]) for row in solo.values()],
        np.array([row["model"] for row in solo.values()]),
        np.array(members),
        1 / np.array(speeds),
    )


def lucid_key(row: Row, side: str) -> tuple[str, ...]:
    return tuple(row[name + side] for name in ("model", "dataset", "batchsize", "amp"))


def miso_slices() -> Slices:
    features = {miso_key(row): row for row in rows_of(DATA / "miso" / "solo_features.csv")}
    runs = [
        row for row in rows_of(DATA / "miso" / "mig_iter_time.csv") if miso_key(row) in features
    ]
    whole = {miso_key(row): float(row["iter_s_median"]) for row in runs if row["mig_g"] == "7"}
    parts = [row for row in runs if row["mig_g"] != "7"]
    solo = [features[miso_key(row)] for row in parts]
    return Slices(
        [profile(row["sm_util_pct"], row["mem_util_pct"]) for row in solo],
        np.array([row["model"] for row in parts]),
        np.array([round(100 * int(row["mig_g"]) / 7) for row in parts]),
        np.array([float(row["iter_s_median"]) / whole[miso_key(row)] for row in parts]),
    )


def miso_key(row: Row) -> tuple[str, str]:
    return row["model"], row["batch"]


def named(workloads: list[Workload]) -> dict[str, Workload]:
    return {str(k): one for k, one in enumerate(workloads)}


def rows_of(path: Path) -> Iterator[Row]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def profile(sm_per_cent: str, memory_per_cent: str) -> Workload:
    """Take utilisations for SM and DRAM activity, and the PCIe rate, unknown, for 0."""
    sm, memory = (min(1.0, float(value) / 100) for value in (sm_per_cent, memory_per_cent))
    metrics = Metrics(sm_active=sm, dram_active=memory, pcie_rx_bytes_s=0.0)
    return Workload(memory_mib=0.0, metrics=metrics)


def random_workloads(count: int) -> list[Workload]:
    values = np.random.default_rng(0).uniform(0, 1, (count, 3)).tolist()
    metrics = [Metrics(sm_active=a, dram_active=b, pcie_rx_bytes_s=1e9 * c) for a, b, c in values]
    return [Workload(memory_mib=0.0, metrics=one) for one in metrics]


def held_out(models: NDArray[np.str_], slowdown: FloatArray, average: Average) -> FloatArray:
    """Return for each row the average slowdown of the rows that share no model with it."""
    predicted = np.empty_like(slowdown)
    for k, own in enumerate(models):
        apart = ~np.isin(models, own).any(axis=1)
        predicted[k] = average(slowdown[apart])
    return predicted


def print_error(name: str, predicted: FloatArray, measured: FloatArray) -> None:
    error = predicted - measured
    low = np.mean(error < -0.1)
    print(f"  {name:20s} MAE {np.abs(error).mean():.3f}  bias {error.mean():+.3f}", end="")
    print(f"  too low by > 0.1: {low:.0%}")


def print_rank(predicted: FloatArray, measured: FloatArray) -> None:
    rank = spearmanr(predicted.ravel(), measured.ravel()).statistic
    print(f"  rank correlation of the analytic prediction {rank:.2f}")


if __name__ == "__main__":
    main()
