"""Coverage of upper bounds on workloads that the model was not fitted on.

Reads ``lucid/`` of ``../shared/data`` next to the checkout (it is not part of the project) and
compares bounds with its measurements. Each family of workloads is left out in turn: the model is
fitted and its bounds are calibrated on the others only; then the engine plans rounds with jobs
of the family among known ones, by predictions, and the bounds of the jobs that it lets share
are compared with the measurements. For pairs of known workloads, a fifth of the pairs is left out
instead. Run it as ``python benchmarks/bounds.py`` (about four minutes; extra ``train``).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.ensemble import ExtraTreesRegressor

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.papers.importers.lucid import GPU_MODEL, import_lucid
from dovetail.predictors.estimators.registry import ModelSpec, spec
from dovetail.predictors.fitted.bounds import Calibration, calibrate
from dovetail.predictors.fitted.folds import (
    Fold,
    family_folds,
    held_out,
    random_folds,
    variant_folds,
)
from dovetail.predictors.fitted.planned import BLIND, GANGS, HeldOutSlowdowns, draw_round, tables
from dovetail.predictors.fitted.rows import DirectedRows, HeldOut, training_rows
from dovetail.predictors.fitted.standing import KNOWN, STANDINGS
from dovetail.solver.rounds import solve

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "lucid"
CONFIDENCES = (0.9, 0.95)
LIMITS = (None, 1.5, 1.2)
ROUNDS = 2
GANG_ROUNDS = 10
JOBS = 30
FEWEST_ROWS = 100

FloatArray = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a registered model; default: extremely random trees")
    name = parser.parse_args().model
    model = spec(name) if name else TREES
    if not DATA.is_dir():
        print(f"no measured data in {DATA}: python benchmarks/fetch_data.py fetches it")
        return
    rows = lucid_rows(model)
    tally = Tally()
    for case in (*new_families(rows, model), *new_pairs(rows, model)):
        for number in range(ROUNDS):
            measure_singles(case, number, tally)
        for number in range(GANG_ROUNDS):
            measure_gangs(case, number, tally)
        measure_all(case, tally)
    report(tally)


TREES = ModelSpec(
    ("log_throughput", "gpu_util", "mem_util", "log_memory_mib"),
    lambda seed: ExtraTreesRegressor(50, min_samples_leaf=5, random_state=seed),
)


def lucid_rows(model: ModelSpec) -> DirectedRows:
    instance = import_lucid(str(DATA), 1)
    profiles = [
        SoloProfile(
            workload=name,
            gpu_model=GPU_MODEL,
            family=name.split()[0],
            metrics=workload.metrics,
            throughput=workload.throughput[100],
            memory_mib=workload.memory_mib,
        )
        for name, workload in instance.workloads.items()
    ]
    measured = [
        Measurement(workloads=entry.workloads, gpu_model=GPU_MODEL, slowdown=entry.slowdown)
        for entry in instance.slowdowns
    ]
    data = DataSet(name="lucid", profiles=tuple(profiles), measurements=tuple(measured))
    return training_rows(data, model.features)[1]


class Bounds(Protocol):
    """Bounds at ``prediction + level * spread``."""

    def level(self, standing: int, confidence: float, workers: int = 1) -> float:
        """Return how many spreads a bound lies above the prediction."""

    def spreads(
        self, slowdown: FloatArray, standing: NDArray[np.int64], error: FloatArray
    ) -> FloatArray:
        """Return the spread of each prediction."""

    def above(self, slowdown: FloatArray, level: ArrayLike, spread: FloatArray) -> FloatArray:
        """Return what lies so many spreads above each slowdown."""


@dataclass(frozen=True)
class Plain:
    """Split conformal prediction: every held-out row alike, no groups, no picking, no gangs."""

    calibration: Calibration
    scores: tuple[FloatArray, ...]

    def level(self, standing: int, confidence: float, workers: int = 1) -> float:
        """Return the quantile of all scores, whatever the number of workers."""
        scores = self.scores[standing]
        rank = np.ceil((len(scores) + 1) * confidence) / len(scores)
        return float(np.quantile(scores, min(rank, 1.0), method="higher"))

    def spreads(
        self, slowdown: FloatArray, standing: NDArray[np.int64], error: FloatArray
    ) -> FloatArray:
        """Return the spread of each prediction."""
        return self.calibration.spreads(slowdown, standing, error)

    def above(self, slowdown: FloatArray, level: ArrayLike, spread: FloatArray) -> FloatArray:
        """Return what lies so many spreads above each slowdown."""
        return self.calibration.above(slowdown, level, spread)


class Case(NamedTuple):
    """Bounds by how they were made, what is predicted where nothing was fitted, and names."""

    bounds: Mapping[str, Bounds]
    table: HeldOutSlowdowns
    names: Sequence[str]


def new_families(rows: DirectedRows, model: ModelSpec) -> Iterator[Case]:
    for fold in family_folds(rows):
        test = fold.test
        if test.sum() < FEWEST_ROWS:
            continue
        train = rows.take(fold.train)
        known = held_out(model, train, random_folds(train))
        among_known = known._replace(row=np.flatnonzero(fold.train)[known.row])
        found = tables(rows, among_known, predicted(rows, model, test))[1]
        yield Case(made(train, known, model), found, rows.names)


def new_pairs(rows: DirectedRows, model: ModelSpec) -> Iterator[Case]:
    for train, test in random_folds(rows, seed=1):
        part = rows.take(train)
        known = held_out(model, part, random_folds(part))
        predictions = predicted(rows, model, test)
        nothing = predictions.take(slice(0))
        yield Case(made(part, known, model), tables(rows, predictions, nothing)[0], rows.names)


def predicted(rows: DirectedRows, model: ModelSpec, test: NDArray[np.bool_]) -> HeldOut:
    return held_out(model, rows, [Fold(~test, test)])


def made(rows: DirectedRows, known: HeldOut, model: ModelSpec) -> dict[str, Bounds]:
    family, variant = (held_out(model, rows, f(rows)) for f in (family_folds, variant_folds))
    new = family.joined(variant)
    corrected = calibrate(rows, known, new)
    return {
        "plain": Plain(corrected, scores(corrected, tables(rows, known, new))),
        "families": calibrate(rows, known, new, settings=(BLIND,)),
        "corrected": corrected,
    }


def scores(calibration: Calibration, found: Sequence[HeldOutSlowdowns]) -> tuple[FloatArray, ...]:
    each: list[list[FloatArray]] = [[] for _ in STANDINGS]
    for k, table in enumerate(found):
        spread = calibration.spreads(table.prediction, table.standing, table.error)
        score = calibration.needed(table.prediction, table.truth, spread)
        for code in range(1, len(STANDINGS)) if k else (KNOWN,):
            values = score[table.standing == code]
            each[code].append(values[~np.isnan(values)])
    return tuple(np.concatenate(values) for values in each)


def uppers(bounds: Bounds, table: HeldOutSlowdowns, confidence: float) -> FloatArray:
    """Return the bounds of single workers; NaN where the confidence is refused."""
    levels = np.array([level(bounds, code, confidence) for code in range(len(STANDINGS))])
    spread = bounds.spreads(table.prediction, table.standing, table.error)
    return bounds.above(table.prediction, levels[table.standing], spread)


def level(bounds: Bounds, standing: int, confidence: float, workers: int = 1) -> float:
    try:
        return bounds.level(standing, confidence, workers)
    except InputError:
        return np.nan


def drawn(case: Case, number: int) -> list[int]:
    """Return the workloads of a round: all new ones, and known ones drawn without repetition."""
    draw = np.random.default_rng([99, number])
    measured = ~np.isnan(case.table.truth).all(axis=1)
    complete = np.isfinite(case.table.truth).sum(axis=1) >= 5
    new = np.flatnonzero(case.table.new & measured)
    old = np.flatnonzero(~case.table.new & complete)
    return [*new.tolist(), *draw.choice(old, JOBS - len(new), replace=False).tolist()]


class Job(NamedTuple):
    """A job by the position of its workload."""

    workload: int
    workers: int = 1


class Placed(NamedTuple):
    """A job of a plan, with the co-runner of each worker that shares, and those that do not."""

    job: Job
    others: Sequence[int]
    alone: int


def planned(
    case: Case, jobs: Sequence[Job], slowdown: FloatArray, upper: FloatArray, limit: float | None
) -> list[Placed]:
    """Return the engine's plan; two workloads without a bound may not share."""
    instance = round_of(case.names, jobs, slowdown, np.maximum(upper, slowdown), limit)
    workload = {f"j{k}": job.workload for k, job in enumerate(jobs)}
    found = []
    for assignment in solve(instance, gap=1e-4, time_limit=10).plan.assignments:
        co_runners = assignment.co_runners or ((),) * len(assignment.gpus)
        others = [workload[other] for names in co_runners for other in names]
        job = jobs[int(assignment.job[1:])]
        found.append(Placed(job, others, len(co_runners) - len(others)))
    return found


def round_of(
    names: Sequence[str],
    jobs: Sequence[Job],
    slowdown: FloatArray,
    upper: FloatArray,
    limit: float | None,
) -> Instance:
    used = sorted({job.workload for job in jobs})
    bounded = np.isfinite(upper) & np.isfinite(upper.T)
    pairs = [(a, b) for k, a in enumerate(used) for b in used[k:] if bounded[a, b]]
    entries = [
        {
            "pair": [names[a], names[b]],
            "slowdown": [slowdown[a, b], slowdown[b, a]],
            "upper": [upper[a, b], upper[b, a]],
        }
        for a, b in pairs
    ]
    queue = [
        {"id": f"j{k}", "workload": names[job.workload], "workers": job.workers, "gsla": limit}
        for k, job in enumerate(jobs)
    ]
    gpus = sum(job.workers for job in jobs) // 2
    node = {"id": "n", "gpu_count": gpus, "gpu": {"model": GPU_MODEL, "memory_mib": 1e6}}
    data = {
        "name": "round",
        "cluster": {"nodes": [node]},
        "workloads": {names[k]: {"memory_mib": 0.0} for k in used},
        "jobs": queue,
        "slowdowns": entries,
    }
    return Instance.from_data(data)


@dataclass
class Tally:
    """What was measured, by what it is of and by case."""

    kept: dict[tuple[object, ...], dict[int, list[float]]] = field(default_factory=dict)
    widths: dict[tuple[object, ...], list[float]] = field(default_factory=dict)
    value: dict[tuple[object, ...], list[float]] = field(default_factory=dict)

    def add(self, key: tuple[object, ...], case: Case, kept: float, width: float) -> None:
        """Count a job or a pair."""
        self.kept.setdefault(key, {}).setdefault(id(case.table.truth), []).append(kept)
        self.widths.setdefault(key, []).append(width)

    def coverage(self, *key: object) -> str:
        """Return the mean over the cases of what was kept, in %, and how many were counted."""
        cases = self.kept.get(key, {})
        if not cases:
            return "-"
        values = [value for case in cases.values() for value in case]
        mean = np.mean([np.mean(case) for case in cases.values()])
        return "refused" if np.isnan(values).any() else f"{100 * mean:.1f} ({len(values)})"

    def width(self, *key: object) -> str:
        """Return the median of bound / prediction, where there is a bound."""
        found = [width for width in self.widths.get(key, ()) if not np.isnan(width)]
        return f"{np.median(found):.3f}" if found else "-"


def measure_singles(case: Case, number: int, tally: Tally) -> None:
    jobs = [Job(workload) for workload in drawn(case, number)]
    truth, prediction = case.table.truth, case.table.prediction
    free = planned(case, jobs, prediction, prediction, None)
    for limit in LIMITS:
        best = rate(planned(case, jobs, truth, truth, limit), truth)
        for name, confidence, upper in all_uppers(case):
            limited = limit is not None
            plan = planned(case, jobs, prediction, upper, limit) if limited else free
            key = (name, confidence, limit)
            tally.value.setdefault(key, []).append(rate(plan, truth) / best)
            judge(case, plan, upper, key, tally)


def all_uppers(case: Case) -> Iterator[tuple[str, float, FloatArray]]:
    for name, bounds in case.bounds.items():
        for confidence in CONFIDENCES:
            yield name, confidence, uppers(bounds, case.table, confidence)


def rate(plan: Sequence[Placed], truth: FloatArray) -> float:
    """Return the sum of the true speeds of single jobs."""
    shared = sum(1 / truth[job.workload, other] for job, others, _ in plan for other in others)
    return float(shared + sum(alone for _, _, alone in plan))


def judge(
    case: Case, plan: Sequence[Placed], upper: FloatArray, key: tuple[object, ...], tally: Tally
) -> None:
    for job, others, _ in plan:
        for other in others:
            mine, theirs = (job.workload, other), (other, job.workload)
            ok = covered(case, upper, mine)
            width = upper[mine] / case.table.prediction[mine]
            standing = int(case.table.standing[mine])
            tally.add((*key, standing, "job"), case, ok, width)
            pair = min(ok, covered(case, upper, theirs))
            worst = int(max(standing, case.table.standing[theirs]))
            tally.add((*key, worst, "pair"), case, pair, width)


def covered(case: Case, upper: FloatArray, cell: tuple[int, int]) -> float:
    return np.nan if np.isnan(upper[cell]) else float(case.table.truth[cell] <= upper[cell])


def measure_gangs(case: Case, number: int, tally: Tally) -> None:
    drawn_round = draw_round(case.table, np.random.default_rng([98, number]))
    first = np.unique(drawn_round.job, return_index=True)[1]
    sizes = np.bincount(drawn_round.job).tolist()
    jobs = [Job(int(drawn_round.workload[k]), size) for k, size in zip(first, sizes, strict=True)]
    table = case.table
    for job, others, _ in planned(case, jobs, table.prediction, table.prediction, None):
        if not others:
            continue
        cells = (np.full(len(others), job.workload), np.array(others))
        standing = int(table.standing[cells].max())
        slowest = table.truth[cells].max()
        for name, bounds in case.bounds.items():
            spread = bounds.spreads(
                table.prediction[cells], table.standing[cells], table.error[cells]
            )
            for confidence in CONFIDENCES:
                factor = level(bounds, standing, confidence, job.workers)
                bound = bounds.above(table.prediction[cells], factor, spread).max()
                kept = np.nan if np.isnan(bound) else float(slowest <= bound)
                width = bound / table.prediction[cells].max()
                tally.add((name, confidence, standing, job.workers), case, kept, width)


def measure_all(case: Case, tally: Tally) -> None:
    table = case.table
    for name, confidence, upper in all_uppers(case):
        for a, b in np.argwhere(np.isfinite(table.prediction + table.truth)):
            if case.table.new.any() and table.standing[a, b] == 0:
                continue
            width = upper[a, b] / table.prediction[a, b]
            key = (name, confidence, "all", int(table.standing[a, b]), "job")
            tally.add(key, case, covered(case, upper, (a, b)), width)


def report(tally: Tally) -> None:
    for confidence in CONFIDENCES:
        print(f"\n## Promised {confidence:.0%}: jobs within their bounds, % (jobs)\n")
        columns = ["all pairs", *(f"picked, gSLA {limit or 'none'}" for limit in LIMITS)]
        print("| pairs | bounds |", " | ".join(columns), "| both of a pair | width |")
        print("|---" * (len(columns) + 4) + "|")
        for code, words in enumerate(STANDINGS):
            for name in METHODS:
                print(
                    f"| {words} | {name} |", " | ".join(cells(tally, name, confidence, code)), "|"
                )
        print(f"\n## Promised {confidence:.0%}: gangs, by workers, % (gangs)\n")
        print("| pairs | bounds |", " | ".join(map(str, GANGS)), "| width at 8 |")
        print("|---" * (len(GANGS) + 3) + "|")
        for code, words in enumerate(STANDINGS):
            for name in METHODS:
                key = (name, confidence, code)
                found = [tally.coverage(*key, workers) for workers in GANGS]
                print(f"| {words} | {name} |", " | ".join(found), f"| {tally.width(*key, 8)} |")
        print(f"\n## Promised {confidence:.0%}: throughput relative to plans by the truth\n")
        for name in METHODS:
            parts = (
                f"gSLA {limit or 'none'} {np.mean(tally.value[name, confidence, limit]):.3f}"
                for limit in LIMITS
            )
            print(f"{name}:", ", ".join(parts))


METHODS = ("plain", "families", "corrected")


def cells(tally: Tally, name: str, confidence: float, code: int) -> list[str]:
    jobs = [tally.coverage(name, confidence, limit, code, "job") for limit in ("all", *LIMITS)]
    pairs = tally.coverage(name, confidence, None, code, "pair")
    return [*jobs, pairs, tally.width(name, confidence, None, code, "job")]


if __name__ == "__main__":
    main()
