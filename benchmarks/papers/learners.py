"""The papers' predictors compared with simpler models, and transfer to another GPU model.

Reads ``lucid/``, ``igniter/`` and ``gavel/`` of ``../shared/data`` next to the checkout (they are
not part of the project). ``python benchmarks/papers/learners.py simple`` holds the models that
TensorShare (Table 6), the SM-allocation paper (section 5.1) and Co-scheML (Table 2) compare with
theirs against Extra Trees on the same features, those of ``sm_allocation``; penalties of linear
models are chosen by cross-validation, all else is scikit-learn's default. ``transfer`` hides most
pairs of one of Gavel's GPU models and uses all of another's (TensorShare, section 4.4). Errors
are mean absolute errors of the slowdown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path

import numpy as np
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import ElasticNetCV, LassoCV, LinearRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from unseen import DATA, igniter

from dovetail.instances.datasets import DataSet
from dovetail.papers.importers.gavel import gavel_data
from dovetail.papers.importers.lucid import lucid_data
from dovetail.papers.predictors import sm_allocation, tensorshare
from dovetail.predictors.estimators import hierarchical
from dovetail.predictors.estimators.registry import ModelSpec, PairEstimator
from dovetail.predictors.fitted.folds import family_folds, fitted, held_out, random_folds
from dovetail.predictors.fitted.rows import DirectedRows, measured_pairs, training_rows
from dovetail.predictors.predictor import BoolArray

GAVEL = DATA / "gavel" / "simulation_throughputs.json.gz"
STEPS = (("k80", "p100"), ("p100", "v100"), ("k80", "v100"))
REVEALED = (0.0, 0.05, 0.1, 0.2)
DRAWS = 5
CONSTANT = ModelSpec((), lambda _: DummyRegressor(strategy="median"))
TRANSFER = (
    "constant",
    "of the source",
    "hierarchical",
    "of both",
    "tensorshare",
    "transferred",
)

SIMPLE: Mapping[str, Callable[[], object]] = {
    "linear regression": LinearRegression,
    "ridge": RidgeCV,
    "lasso": LassoCV,
    "elastic net": ElasticNetCV,
    "SVR, linear kernel": lambda: SVR(kernel="linear"),
    "SVR, polynomial": lambda: SVR(kernel="poly"),
    "SVR, Gaussian": SVR,
    "decision tree": lambda: DecisionTreeRegressor(random_state=0),
    "random forest": lambda: RandomForestRegressor(random_state=0),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="of simple, transfer; all")
    for part in parser.parse_args(arguments).parts or ("simple", "transfer"):
        {"simple": report_simple, "transfer": report_transfer}[part]()


def report_simple() -> None:
    """Print the errors on new pairs and new families of Lucid and iGniter."""
    for data in (lucid_data(str(DATA / "lucid")), igniter()):
        compare(data)


def compare(data: DataSet) -> None:
    features, rows = training_rows(data, sm_allocation.SPEC.features)
    # A curve that ends below the whole GPU leaves the slowdown alone at a share unknown.
    known = ~np.isnan(rows.states).any(axis=0)
    features, rows = training_rows(data, list(compress(features.names, known)))
    print(f"\n{data.name}: {len(rows.slowdown)} slowdowns; {', '.join(features.names)}")
    for name, make in SIMPLE.items():
        print_errors(name, ModelSpec(features.names, lambda _, make=make: scaled(make())), rows)
    print_errors("sm_allocation", sm_allocation.SPEC, rows)


def scaled(model: object) -> PairEstimator:
    made: PairEstimator = make_pipeline(MinMaxScaler(), model)
    return made


def print_errors(name: str, model: ModelSpec, rows: DirectedRows) -> None:
    errors = []
    for folds in (random_folds(rows), family_folds(rows)):
        held = held_out(model, rows, folds)
        weight = 1 / np.bincount(held.row)[held.row]
        errors.append(np.average(np.abs(held.slowdown - rows.slowdown[held.row]), weights=weight))
    print(f"  {name:20s}" + "".join(f"{error:8.3f}" for error in errors), flush=True)


def report_transfer() -> None:
    """Print the errors on the target's other pairs, with and without the source's."""
    data = gavel_data(str(GAVEL))
    network = tensorshare.SPEC._replace(features=("log_throughput",))
    print(f"\ngavel, mean of {DRAWS} draws of the target's pairs:")
    print(f"  {'':17s}" + "".join(f"{name:>16s}" for name in TRANSFER))
    for source, target in STEPS:
        processes = by_gpu_model(data, hierarchical.SPEC, source, target)
        networks = by_gpu_model(data, network, source, target)
        stand_in = fitted(hierarchical.SPEC, processes[0])
        for part in REVEALED:
            draws = [hidden(processes[1], part, seed) for seed in range(DRAWS)]
            found = [
                (
                    error(fitted(CONSTANT, known), unknown) if part else np.nan,
                    error(stand_in, unknown),
                    error(fitted(hierarchical.SPEC, known), unknown) if part else np.nan,
                    error(fitted(hierarchical.SPEC, joined(processes[0], known)), unknown),
                    *network_errors(network, networks, test, seed),
                )
                for seed, test in enumerate(draws)
                for known, unknown in [(processes[1].take(~test), processes[1].take(test))]
            ]
            print(f"  {source} -> {target} {part:4.0%}", end="")
            print("".join(f"{mean:16.3f}" for mean in np.mean(found, axis=0)), flush=True)


def by_gpu_model(
    data: DataSet, model: ModelSpec, source: str, target: str
) -> tuple[DirectedRows, DirectedRows]:
    """Return the rows of two GPU models, which number workloads alike."""
    _, rows = training_rows(data, model.features, [source, target], partial=model.partial)
    of_pair = np.array([m.gpu_model for m in measured_pairs(data, [source, target])])
    return rows.take(of_pair[rows.pair] == source), rows.take(of_pair[rows.pair] == target)


def joined(first: DirectedRows, second: DirectedRows) -> DirectedRows:
    """Return the rows of two parts of the same rows."""
    columns = ("own", "other", "pair", "slowdown")
    both = {name: np.append(getattr(first, name), getattr(second, name)) for name in columns}
    return first._replace(**both)


def hidden(rows: DirectedRows, part: float, seed: int) -> BoolArray:
    """Hide all pairs of workloads but a part, drawn at random."""
    pairs = np.unique(rows.workload_pair)
    order = np.random.default_rng(seed).permutation(pairs)
    return ~np.isin(rows.workload_pair, order[: round(part * len(pairs))])


def network_errors(
    model: ModelSpec, networks: tuple[DirectedRows, DirectedRows], test: BoolArray, seed: int
) -> tuple[float, float]:
    """Return the errors of TensorShare's network without and with the source's pairs."""
    old, new = networks
    known, unknown = new.take(~test), new.take(test)
    if test.all():
        return np.nan, error(fitted(model, old, seed), unknown)
    alone, tuned = fitted(model, known, seed), fitted(model._replace(source=old), known, seed)
    return error(alone, unknown), error(tuned, unknown)


def error(model: PairEstimator, rows: DirectedRows) -> float:
    return float(np.abs(model.predict(rows.table) - rows.slowdown).mean())


if __name__ == "__main__":
    main()
