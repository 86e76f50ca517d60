"""Compare the forms of fitted models with the libraries they were fitted with.

    python benchmarks/predict.py                                 the whole table
    python benchmarks/predict.py --workloads 200 --models castor a short form

The work is that of a large round: every pair of 1,000 workloads at nine splits of the SMs, both
orders, 9 million rows. Ours answers them in one call on the states (workloads at caps); a
library needs the table of all rows, which is timed on a sample and scaled up. Every cell runs in
a process of its own with all cores; a first call on few rows is not timed (imports, kept machine
code, threads); "MiB" is what the timed call adds to the memory of the process at its peak,
answers included, for a library with the table of its sample. Profiles and slowdowns are
synthetic: random numbers and a formula with noise.

Measured on 2 cores of an AMD EPYC that other work also used, so that CPU time is more reliable
than wall-clock time (``--sample 100000``; numpy 2.4.6, numba 0.68.1, scikit-learn 1.9.1,
XGBoost 3.2.0, ONNX Runtime 1.31.1, treelite 4.8.1 with its interpreter)::

    CPU seconds for 9,009,000 rows   castor  coscheml  sm_allocation
    form, compiled                      2.3       3.7            3.6   88 MiB, of them 69 answers
    form, numpy                        11.3      23.9           25.6
    XGBoost / scikit-learn             30.7      51.5           55.3   + the table: 2 to 4 GB
    ONNX Runtime                      103.5      78.3          103.6
    treelite                          171.1     170.8          199.5

So a compiled form pays off, but not a general one: ONNX Runtime and treelite take longer than the
libraries themselves, as they also walk down every tree for every row. The bit masks of the states
take a thirteenth of the CPU time or less with numba, and less than half without.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.papers.forms import _kernels
from dovetail.predictors.estimators.registry import spec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Predict = Callable[[Floats], Any]

TREES = ("castor", "coscheml", "sm_allocation")
MODELS = (*TREES, "tensorshare", "hierarchical", "analytic", "constant")
CAPS = 9
TRAINED = 60
TRAINING_ROWS = 6000


class Timing(NamedTuple):
    """What was timed: rows, wall-clock and CPU seconds, and what the process grew by."""

    rows: int
    seconds: float
    cpu_s: float
    mib: float


@dataclass
class Work:
    """States and the rows of pairs to be predicted; a fitted model."""

    model: Any
    states: Floats
    own: Ints
    other: Ints

    def table(self, rows: int) -> Floats:
        """Return own and co-runner's features of some rows, evenly picked."""
        some = np.linspace(0, len(self.own) - 1, rows).astype(np.int64)
        return np.hstack([self.states[self.own[some]], self.states[self.other[some]]])


def work(name: str, workloads: int) -> Work:
    """Fit a model on synthetic pairs and list every pair at nine splits, in both orders."""
    made, draw = spec(name), np.random.default_rng(0)
    # Models that know workloads by number are fitted on a few of them, at one share.
    coded = "workload" in made.features
    seen = TRAINED if coded else TRAINING_ROWS
    ends = draw.integers(0, seen, (2, TRAINING_ROWS))
    traits = draw.random((2, seen))
    noise = 0.03 * draw.standard_normal(TRAINING_ROWS)
    crowd = np.maximum(0, traits[0, ends].sum(axis=0) - 0.8)
    slowdown = 1 + crowd + traits[1, ends].prod(axis=0) + noise
    trained = made_up(made.features, seen, coded, draw, traits)
    table = np.hstack([trained[ends[0]], trained[ends[1]]])
    states = made_up(made.features, workloads * CAPS, coded, draw)
    first, second = np.triu_indices(workloads)
    caps = np.arange(CAPS)[:, np.newaxis]
    own, other = (first * CAPS + caps).ravel(), (second * CAPS + CAPS - 1 - caps).ravel()
    both = np.concatenate([own, other]), np.concatenate([other, own])
    return Work(made.build(0).fit(table, slowdown), states, *both)


def made_up(
    features: Sequence[str],
    states: int,
    coded: bool,
    draw: np.random.Generator,
    traits: Floats | None = None,
) -> Floats:
    """Return states of random numbers, with codes, shares and slowdowns alone where asked for."""
    number = np.arange(states) % TRAINED
    fixed = {"workload": number, "family": number // 5, "alone": 1.0, "absent": 0.0}
    if coded:
        fixed["share"] = 1.0
    values = draw.random((states, len(features)))
    fixed["log_alone"] = 0.0
    described = [k for k, name in enumerate(features) if name not in fixed]
    for k, trait in zip(described, () if traits is None else traits, strict=False):
        values[:, k] = trait
    for k, name in enumerate(features):
        values[:, k] = fixed.get(name, values[:, k])
    return values


def ours(found: Work, sample: int) -> Timing:
    """Time the form on all rows with numba."""
    require("numba")
    _kernels._WORTH_LOADING = _kernels._WORTH_CALLING = 0
    return form(found)


def ours_plain(found: Work, sample: int) -> Timing:
    """Time the form without numba."""
    _kernels._WORTH_LOADING = _kernels._WORTH_CALLING = sys.maxsize
    return form(found)


def form(found: Work) -> Timing:
    form = found.model.to_form()
    form.predict(found.states[:1], np.zeros(1, np.int64), np.zeros(1, np.int64))
    return timed(len(found.own), lambda: form.predict(found.states, found.own, found.other))


def library(found: Work, sample: int) -> Timing:
    """Time scikit-learn's or XGBoost's own prediction with all cores."""
    if hasattr(found.model, "booster_"):
        found.model.booster_.set_param({"nthread": os.cpu_count()})
    elif "n_jobs" in found.model.get_params():
        found.model.set_params(n_jobs=-1)
    return on_table(found, sample, found.model.predict)


def onnx(found: Work, sample: int) -> Timing:
    """Time ONNX Runtime on what skl2onnx or, for XGBoost, onnxmltools makes of the model."""
    require("onnxruntime", "skl2onnx")
    from onnxruntime import InferenceSession

    if hasattr(found.model, "booster_"):
        require("onnxmltools")
        from onnxmltools.convert import convert_xgboost
        from onnxmltools.convert.common.data_types import FloatTensorType

        columns = [("X", FloatTensorType([None, found.table(1).shape[1]]))]
        converted = convert_xgboost(found.model.booster_, initial_types=columns)
    else:
        from skl2onnx import to_onnx

        # Converters are registered for the library's own class, of which ours adds a method.
        found.model.__class__ = type(found.model).__base__
        converted = to_onnx(found.model, found.table(1).astype(np.float32))
    session = InferenceSession(converted.SerializeToString())
    return on_table(found, sample, lambda x: session.run(None, {"X": x.astype(np.float32)}))


def treelite(found: Work, sample: int) -> Timing:
    """Time treelite's general inference library (its compiler is a package of its own)."""
    require("treelite")
    import treelite

    if hasattr(found.model, "booster_"):
        trees = treelite.frontend.from_xgboost(found.model.booster_)
    else:
        trees = treelite.sklearn.import_model(found.model)
    return on_table(found, sample, lambda x: treelite.gtil.predict(trees, x.astype(np.float32)))


METHODS: dict[str, Callable[[Work, int], Timing]] = {
    "form, compiled": ours,
    "form, numpy": ours_plain,
    "library": library,
    "ONNX Runtime": onnx,
    "treelite": treelite,
}


class AbsentError(Exception):
    """A package that a method needs is not installed."""


def require(*packages: str) -> None:
    for name in packages:
        if find_spec(name) is None:
            raise AbsentError(f"{name} not installed")


def on_table(found: Work, sample: int, predict: Predict) -> Timing:
    """Time a library on the table of a sample of the rows, the making of the table included."""
    rows = min(sample, len(found.own))
    predict(found.table(min(rows, 1000)))
    return timed(rows, lambda: predict(found.table(rows)))


def timed(rows: int, call: Callable[[], Any]) -> Timing:
    held = held_mib()
    start, start_cpu = time.perf_counter(), time.process_time()
    call()
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Timing(rows, seconds, cpu_s, peak - held)


def held_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def cell(model: str, method: str, workloads: int, sample: int) -> dict[str, Any]:
    """Run one cell; to be called in a process of its own."""
    if model not in TREES and method in ("ONNX Runtime", "treelite", "form, compiled"):
        return {"absent": "for models of trees only"}
    found = work(model, workloads)
    try:
        return {"all": len(found.own), **METHODS[method](found, sample)._asdict()}
    except AbsentError as error:
        return {"absent": str(error)}


def in_own_process(*cell: str | int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--cell", json.dumps(cell)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def line(model: str, method: str, result: dict[str, Any]) -> str:
    name = f"{model:14s} {method:15s}"
    if "absent" in result:
        return f"{name} {result['absent']}"
    scale = result["all"] / result["rows"]
    seconds, cpu_s = scale * result["seconds"], scale * result["cpu_s"]
    times = f"{result['all'] / seconds:12,.0f} {seconds:8.1f} {cpu_s:8.1f}"
    note = "all rows" if scale == 1 else f"from {result['rows']:,} rows"
    return f"{name} {times} {result['mib']:8.0f}  {note}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare forms with libraries.")
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--sample", type=int, default=200_000, help="rows timed of a library")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=tuple(METHODS))
    parser.add_argument("--cell", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cell:
        print(json.dumps(cell(*options.cell)))
        return
    packages = ("numpy", "numba", "scikit-learn", "xgboost-cpu", "onnxruntime", "treelite")
    print(f"{os.cpu_count()} cores; {', '.join(map(release, packages))}")
    print(
        f"{'model':14s} {'method':15s} {'rows/s':>12s} {'wall, s':>8s} {'CPU, s':>8s} {'MiB':>8s}"
    )
    for model in options.models:
        for method in options.methods:
            found = in_own_process(model, method, options.workloads, options.sample)
            print(line(model, method, found), flush=True)


def release(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} -"


if __name__ == "__main__":
    main()
