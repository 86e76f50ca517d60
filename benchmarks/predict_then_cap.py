"""Predict, then cap: plans of pairs that never ran, on our measurements of an H200.

    python benchmarks/predict_then_cap.py                     all parts, about ten minutes
    python benchmarks/predict_then_cap.py cold rounds --json  some of them, as data

Eight workloads were measured in pairs without caps and at 50/50. What was not measured cannot be
judged: such splits are kept from every plan, but for the four pairs that were too slow to measure
without caps (more than 7 times slower), which break any gSLA there.

``cold``: only solo profiles of two workloads are known. Models are fitted without any pair of
either (a workload left out twice), and so are the law of ``kernels`` and its errors. Would a plan
let the two share, without caps or at 50/50? *Rightly admitted* are pairs at a split
that keeps the gSLA by the measurement, of those that keep it at some split.

``rounds``: rounds of jobs on 16 GPUs, three in four with a gSLA of 1.2 to 3. A part of the pairs is
hidden; the others are known. Throughput by the measurements, a GPU with one job at a time being 1,
and the jobs whose gSLA or upper bound is broken, of those with one in pairs that never ran.

``week``: the trace ``library:h200-week``, simulated with the measurements as the world. Policies
know the slowdowns; ``dovetail`` with and without preemption, and with one kind of split only.

``half``: the same week with ``dovetail``, which knows half of the pairs. The others are predicted
until they have run.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from statistics import NormalDist, fmean
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dovetail.executor.simulation import simulate
from dovetail.executor.simulation.metrics import summary
from dovetail.executor.simulation.worlds import world_of
from dovetail.instances._record import AnyShare
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.files import read_dataset
from dovetail.instances.instance import Instance, Job, Workload
from dovetail.instances.slowdowns.entry import SharingMode, SlowdownEntry
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.instances.traces import library_trace, library_world
from dovetail.predictors import AnalyticPredictor, Prediction, Predictor, predict
from dovetail.predictors.fitted.rows import DirectedRows
from dovetail.predictors.fitted.training import fit, prepared
from dovetail.predictors.forms.kernels import law_of_states
from dovetail.predictors.kernels import RANGES, KernelsPredictor, Law
from dovetail.predictors.predictor import UNCAPPED
from dovetail.solver.policies import policy_named
from dovetail.solver.rounds import solve

GSLAS: Final = (1.5, 2.0)
HIDDEN: Final = (0.5, 0.8)
POLICIES: Final = (
    "dovetail",
    "dovetail:preempt=false",
    *("tesserae", "muri", "gavel", "castor", "tiresias", "lucid", "tensorshare", "sjf", "fifo"),
)


def _cap(share: AnyShare) -> Split:
    return None if share is None else int(share)


Split = int | None
"""The cap of both jobs; None for no caps."""

Pair = tuple[str, str]
Row = dict[str, Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class AtItsWord:
    """A predictor whose estimates are taken for bounds, as they were before."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    def lacks(self, name: str, workload: Workload) -> tuple[str, ...]:
        """Return what the predictor needs and the workload lacks."""
        return self.predictor.lacks(name, workload)

    def predict(
        self,
        workloads: Mapping[str, Workload],
        pairs: Ints,
        shares: Ints,
        gpu_model: str | None = None,
        mode: SharingMode = "mps",
    ) -> Prediction:
        """Predict every row."""
        found = self.predictor.predict(workloads, pairs, shares, gpu_model, mode)
        return found._replace(upper=found.slowdown)


class LawOfOthers:
    """The predictor ``kernels`` with law and bounds from these measurements alone.

    The bounds are quantiles of how much slower jobs were than the law said that was fitted without
    one of the two workloads, without caps and under caps.
    """

    def __init__(self, data: DataSet, confidence: float) -> None:
        law, missed, capped = _learnt(data)
        self.law = KernelsPredictor(law)
        self.far = [np.quantile(missed[capped == kind], confidence) for kind in (False, True)]

    def lacks(self, name: str, workload: Workload) -> tuple[str, ...]:
        """Return the missing metrics of activity."""
        return self.law.lacks(name, workload)

    def predict(
        self,
        workloads: Mapping[str, Workload],
        pairs: Ints,
        shares: Ints,
        gpu_model: str | None = None,
        mode: SharingMode = "mps",
    ) -> Prediction:
        """Predict every row."""
        found = self.law.predict(workloads, pairs, shares, gpu_model, mode)
        assert found.upper is not None
        assert found.error is not None
        far = np.where(shares == UNCAPPED, *self.far)
        worst = found.upper * np.exp(-NormalDist().inv_cdf(self.law.confidence) * found.error)
        upper = np.maximum(found.slowdown, worst) * np.exp(far)
        return found._replace(upper=np.maximum(found.slowdown, upper))


_LEARNT: dict[bytes, tuple[Law, Floats, Floats]] = {}


def _learnt(data: DataSet) -> tuple[Law, Floats, Floats]:
    """Return the law of all pairs, and by how much it missed each without one of the workloads."""
    rows = prepared(data, "kernels").rows
    key = rows.slowdown.tobytes()
    if key not in _LEARNT:
        _LEARNT[key] = _learnt_of(rows)
    return _LEARNT[key]


def _learnt_of(rows: DirectedRows) -> tuple[Law, Floats, Floats]:
    ends = np.stack([rows.workload[rows.own], rows.workload[rows.other]])
    missed = []
    for workload in np.unique(ends):
        test = (ends == workload).any(axis=0)
        off = np.log(rows.slowdown / _by_law(_law(rows, ~test), rows))
        missed.append(np.stack([off, rows.states[rows.own, -1] < 1], axis=1)[test])
    off, capped = np.concatenate(missed).T
    return _law(rows, np.full(len(rows.slowdown), True)), off, capped


PRIOR: Final = {"wait": 1.0, "warps": 0.5, "room_exponent": 3.0, "bandwidth": 1.0}
"""Round numbers, each right within a factor of about two (a standard deviation)."""


def _law(rows: DirectedRows, fitted: NDArray[np.bool_]) -> Law:
    """Return the law of these rows."""
    center = np.log([PRIOR[name] for name in RANGES])
    least, most = np.log(np.maximum(np.array(list(RANGES.values())), 1e-3)).T

    def off(numbers: Floats) -> Floats:
        missed = np.log(rows.slowdown / _by_law(_of(numbers), rows))[fitted] / 0.1
        return np.concatenate([missed, (numbers - center) / np.log(2)])

    return _of(least_squares(off, center, bounds=(least, most), loss="soft_l1").x)


def _of(numbers: Floats) -> Law:
    each = zip(RANGES.items(), np.exp(numbers).tolist(), strict=True)
    return Law(**{name: min(max(n, least), most) for (name, (least, most)), n in each})


def _by_law(law: Law, rows: DirectedRows) -> Floats:
    return law_of_states(law, rows.states, rows.own, rows.other)


Model = Callable[[DataSet], Predictor]
"""Makes a predictor from measurements."""

MODELS: Final[Mapping[str, Model]] = {
    "analytic": lambda data: AnalyticPredictor(),
    "analytic's word": lambda data: AtItsWord(AnalyticPredictor()),
    "names 80%": lambda data: fit(data, "constant", confidence=0.8),
    "hierarchical 80%": lambda data: fit(data, "hierarchical", confidence=0.8),
    "kernels 90%": lambda data: LawOfOthers(data, 0.9),
    "kernels 70%": lambda data: LawOfOthers(data, 0.7),
    "kernels 50%": lambda data: LawOfOthers(data, 0.5),
}


@dataclass(frozen=True)
class Truth:
    """The measurements, and an instance with them.

    Attributes
    ----------
    data : DataSet
        The measurements.
    world : Instance
        The cluster and all entries, without jobs.
    slowdown : mapping
        The slowdowns of two workloads, in alphabetical order, at a split.
    """

    data: DataSet
    world: Instance
    slowdown: Mapping[tuple[Pair, Split], tuple[float, ...]]

    @classmethod
    def of(cls, data: DataSet, nodes: int = 1, gpus: int = 1) -> Truth:
        """Return the measurements in a cluster of so many nodes of so many GPUs."""
        world = world_of(data, nodes, gpus)
        known: dict[tuple[Pair, Split], tuple[float, ...]] = {}
        for entry in world.slowdowns:
            slowdown = entry.slowdown or (math.inf, math.inf)
            (a, one), (b, other) = sorted(zip(entry.workloads, slowdown, strict=True))
            known[(a, b), _cap(entry.shares[0])] = (one, other)
        return cls(data, world, known)

    @property
    def pairs(self) -> list[Pair]:
        """Every two workloads, also of one kind."""
        return list(combinations_with_replacement(sorted(self.world.workloads), 2))

    def kept(self, pair: Pair, split: Split, gsla: float) -> bool:
        """Whether both jobs were measured to keep a gSLA."""
        found = self.slowdown.get((pair, split))
        return found is not None and max(found) <= gsla

    def without(self, hidden: Callable[[Sequence[str]], bool]) -> DataSet:
        """Return the measurements without those of hidden pairs."""
        left = tuple(m for m in self.data.measurements if not hidden(m.workloads))
        return self.data.replace(measurements=left)

    def problem(
        self,
        jobs: Sequence[Job],
        splits: Sequence[Split],
        hidden: Callable[[Sequence[str]], bool],
    ) -> Instance:
        """Return a round in which hidden pairs are unknown at the splits that were measured."""
        measured = (e for e in self.world.slowdowns if not hidden(e.workloads))
        entries = [e for e in measured if _cap(e.shares[0]) in splits]
        closed = [
            SlowdownEntry(pair=pair, share=split and (split, split), slowdown=None)
            for pair in self.pairs
            for split in (None, 50)
            if (split not in splits or (pair, split) not in self.slowdown)
        ]
        cluster = self.world.cluster.replace(shares=tuple(s for s in splits if s is not None))
        used = {job.workload for job in jobs} if jobs else set(self.world.workloads)
        known = [e for e in (*entries, *closed) if used.issuperset(e.workloads)]
        return self.world.replace(cluster=cluster, jobs=tuple(jobs), slowdowns=tuple(known))


# Cold start


def cold(truth: Truth, models: Sequence[str], pairs: Sequence[Pair] = ()) -> Iterator[Row]:
    """Yield what each model admits of pairs (default: all) that it was not fitted on."""
    for name in models:
        made = cache(lambda out, name=name: MODELS[name](truth.without(out.intersection)))
        for gsla in GSLAS:
            found = Counter[str]()
            for pair in pairs or truth.pairs:
                may = any(truth.kept(pair, split, gsla) for split in (None, 50))
                split = _chosen(truth, made(frozenset(pair)), pair, gsla)
                found["may"] += may
                if split != ():
                    kept = truth.kept(pair, split[0], gsla)
                    found["admitted"] += 1
                    found["capped"] += split[0] is not None
                    found["broken"] += not kept
                    found["rightly"] += kept
            yield {"model": name, "gsla": gsla, **{k: found[k] for k in COLD}}


COLD: Final = ("admitted", "capped", "broken", "rightly", "may")


def _chosen(truth: Truth, predictor: Predictor, pair: Pair, gsla: float) -> tuple[Split, ...]:
    """Return the cap at which a plan lets the two share; empty if it does not."""
    jobs = [Job(id=f"j{k}", workload=name, gsla=gsla) for k, name in enumerate(pair)]
    problem = truth.problem(jobs, (None, 50), lambda names: True)
    plan = solve(predict(problem, predictor)).plan
    return (plan.assignments[0].shares[0],) if len(plan.assignments) == len(jobs) else ()


# Rounds


WAYS: Final[Mapping[str, tuple[Split, ...]]] = {
    "best split": (None, 50),
    "never capped": (None,),
    "always halves": (50,),
}


def rounds(truth: Truth, models: Sequence[str], draws: int, each: int) -> Iterator[Row]:
    """Yield what plans are worth by the measurements, for each model and way of splitting."""
    tally: dict[tuple[float, str, str], list[Row]] = {}
    for part in HIDDEN:
        for seed in range(draws):
            never_ran = Hidden(truth, part, seed)
            made = {name: MODELS[name](truth.without(never_ran)) for name in models}
            for _ in range(each):
                jobs = drawn(never_ran.draw, sorted(truth.world.workloads))
                for way, splits in WAYS.items():
                    known = truth.problem(jobs, splits, lambda names: False)
                    worth = _worth(truth, known, never_ran)
                    tally.setdefault((part, "all known", way), []).append(worth)
                    for name, predictor in made.items():
                        filled = predict(truth.problem(jobs, splits, never_ran), predictor)
                        worth = _worth(truth, filled, never_ran)
                        tally.setdefault((part, name, way), []).append(worth)
    for (part, name, way), found in tally.items():
        sums = {k: sum(one[k] for one in found) for k in ("promised", "broken", "bounds")}
        mean = fmean(one["throughput"] for one in found)
        yield {"hidden": part, "model": name, "way": way, "throughput": mean, **sums}


class Hidden:
    """A part of the pairs, drawn at random: whether two workloads are one of them."""

    def __init__(self, truth: Truth, part: float, seed: int) -> None:
        self.draw = random.Random(f"{part} {seed}")
        self.pairs = set(self.draw.sample(truth.pairs, round(part * len(truth.pairs))))

    def __call__(self, names: Sequence[str]) -> bool:
        """Return whether this pair never ran."""
        return tuple(sorted(names)) in self.pairs


def drawn(draw: random.Random, names: Sequence[str]) -> list[Job]:
    """Return 40 jobs, three in four with a gSLA."""
    return [
        Job(
            id=f"j{k}",
            workload=draw.choice(names),
            gsla=round(draw.uniform(1.2, 3.0), 2) if draw.random() < 0.75 else None,
        )
        for k in range(40)
    ]


def _worth(truth: Truth, filled: Instance, never_ran: Callable[[Sequence[str]], bool]) -> Row:
    """Return the true throughput of the best plan, and the broken promises to new pairs."""
    jobs = filled.jobs_by_id
    entries = {(entry.workloads, entry.shares): entry for entry in filled.slowdowns}
    on: dict[str, list[tuple[str, Split]]] = {}
    for row in solve(filled).plan.assignments:
        on.setdefault(row.gpus[0], []).append((row.job, row.shares[0]))
    worth = Counter[str]()
    done = 0.0
    for held in on.values():
        if len(held) == 1:
            done += 1.0
            continue
        (first, split), (second, _) = sorted(held, key=lambda one: jobs[one[0]].workload)
        pair = (jobs[first].workload, jobs[second].workload)
        true = truth.slowdown[pair, split]
        done += sum(1 / slowdown for slowdown in true)
        if never_ran(pair):
            for job, slowdown, upper in zip(
                (first, second), true, _upper(entries, pair, split), strict=True
            ):
                gsla = jobs[job].gsla
                worth["promised"] += gsla is not None
                worth["broken"] += gsla is not None and slowdown > gsla
                worth["bounds"] += gsla is not None and slowdown > upper
    counted = {k: worth[k] for k in ("promised", "broken", "bounds")}
    return {"throughput": done / len(filled.places), **counted}


def _upper(
    entries: Mapping[tuple[Any, Any], SlowdownEntry], pair: Pair, split: Split
) -> tuple[float, ...]:
    """Return the upper bounds of both workloads, as the plan saw them."""
    for names in (pair, pair[::-1]):
        entry = entries.get((names, (split, split)))
        if entry is not None and entry.slowdown is not None:
            bounds = entry.upper or entry.slowdown
            return bounds if names == pair else bounds[::-1]
    raise LookupError(pair)


# A week


def week(policies: Sequence[str]) -> Iterator[Row]:
    """Yield the metrics of each policy, and of ``dovetail`` with one kind of split only."""
    world = library_world("h200-week")
    for name in policies:
        yield _metrics(world, name, "best split" if name.startswith("dovetail") else "")
        if name.startswith("dovetail"):
            for way in ("never capped", "always halves"):
                kept = [e for e in world.slowdowns if _cap(e.shares[0]) in WAYS[way]]
                yield _metrics(world.replace(slowdowns=tuple(kept)), name, way)


def half(truth: Truth, models: Sequence[str], draws: int) -> Iterator[Row]:
    """Yield the metrics of ``dovetail`` if half of the pairs are predicted until they have run."""
    for name in models:
        for way, splits in WAYS.items():
            found = []
            for seed in range(draws):
                hidden = Hidden(truth, 0.5, seed)
                believed = predict(
                    truth.problem((), splits, hidden), MODELS[name](truth.without(hidden))
                )
                world = truth.problem((), splits, lambda names: False)
                found.append(_metrics(world, "dovetail", way, SlowdownTable.of(believed)))
            means = {key: fmean(one[key] for one in found) for key in ("mean_h", "p99_h", "broken")}
            yield {**found[0], **means, "model": name}


def _metrics(world: Instance, policy: str, way: str, believed: SlowdownTable | None = None) -> Row:
    trace = library_trace("h200-week")
    found = summary(simulate(trace, world, policy_named(policy), None, believed), trace)
    asked = sum(job.gsla is not None for job in trace.jobs)
    return {
        "policy": policy,
        "way": way,
        "mean_h": found["jct_mean_s"] / 3600,
        "p99_h": found["jct_p99_s"] / 3600,
        "broken": round(np.nan_to_num(found["violation_rate"]) * asked),
        "promised": asked,
    }


# Tables


def tables(found: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield the lines of every part."""
    if "cold" in found:
        yield "Measured (H200): pairs of two workloads left out, at the best split by the bound"
        yield f"{'model':16} gSLA  rightly admitted  admitted  capped  broken of admitted"
        for r in found["cold"]:
            may = f"{r['rightly']}/{r['may']} ({r['rightly'] / r['may']:.0%})"
            broken = f"{r['broken']}/{r['admitted']}"
            yield (
                f"{r['model']:16} {r['gsla']:4g} {may:>17} {r['admitted']:9} {r['capped']:7} "
                f"{broken:>19}"
            )
    if "rounds" in found:
        yield "Measured (H200): 40 jobs on 16 GPUs; exclusive = 1"
        yield f"{'hidden':6} {'model':16} {'way':14} throughput  gSLAs broken  bounds broken"
        for r in found["rounds"]:
            broken, bounds = (f"{r[k]}/{r['promised']}" for k in ("broken", "bounds"))
            yield (
                f"{r['hidden']:6.0%} {r['model']:16} {r['way']:14} {r['throughput']:10.3f} "
                f"{broken:>13} {bounds:>14}"
            )
    for part, title in (("week", "slowdowns known"), ("half", "half of the pairs predicted")):
        if part in found:
            yield f"Simulated: library:h200-week, measured slowdowns of an H200; {title}"
            yield f"{'policy':24} {'':14}  mean JCT h  p99 h  gSLAs broken"
            for r in found[part]:
                name = r["policy"] if part == "week" else r["model"]
                yield (
                    f"{name:24} {r['way']:14} {r['mean_h']:11.2f} {r['p99_h']:6.1f} "
                    f"{r['broken']:7.4g} of {r['promised']}"
                )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = ("cold", "rounds", "week", "half")
    parser.add_argument("parts", nargs="*", default=parts, help=f"of {', '.join(parts)}")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--draws", type=int, default=4, help="of hidden pairs")
    parser.add_argument("--rounds", type=int, default=4, help="for each draw")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    truth = Truth.of(read_dataset("library:h200-2026-11"))
    many = Truth.of(truth.data, 2, 8)
    run: Mapping[str, Callable[[], Iterator[Row]]] = {
        "cold": lambda: cold(truth, asked.models),
        "rounds": lambda: rounds(many, asked.models, asked.draws, asked.rounds),
        "week": lambda: week(asked.policies),
        "half": lambda: half(many, asked.models, asked.draws),
    }
    found = {part: list(run[part]()) for part in asked.parts}
    print(json.dumps(found) if asked.json else "\n".join(tables(found)))


if __name__ == "__main__":
    main()
