"""The fewest GPUs for services that share within their gSLAs: Dovetail and its peers in one run.

    python benchmarks/fewest.py                 every case
    python benchmarks/fewest.py --cases "pairs of 300"

Services of some workloads on GPUs of one model. A service is slowed by 1 plus, for each co-runner,
its own sensitivity times the co-runner's pressure, and has a gSLA; all numbers are made up.

- ``dovetail``: the objective ``fewest``, from the instance to the checked plan.
- ``cpsat``, ``cbc``: the problem written out by hand for OR-Tools and PuLP. A whole variable for
  each set of workloads that may share says how many GPUs hold it, and their sum is minimised.
- ``first fit``: by memory, largest first, each service on the first GPU where it fits and all keep
  their gSLAs; without a bound.

Printed are the GPUs, the bound, and processor time with its ratio to that of ``dovetail``. The
instance and the sets are made before; what solvers make of them counts, and for ``first fit`` the
tests of sets.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from dovetail import Instance, solve
from dovetail.solver.pairing import compile_kernels

CARD_MIB, SEED = 81_920, 1


class Services(NamedTuple):
    """Services of some workloads, and how many of them may share a GPU.

    Attributes
    ----------
    copies, memory_mib : (workloads,) int
        The services of each workload, and the memory of one.
    sensitivity, pressure, gsla : (workloads,) float
        How much it suffers and does, and the slowdown that it accepts.
    most : int
        The most services on a GPU.
    """

    copies: np.ndarray
    memory_mib: np.ndarray
    sensitivity: np.ndarray
    pressure: np.ndarray
    gsla: np.ndarray
    most: int

    def slowdowns(self, kept: Sequence[int]) -> np.ndarray:
        """Return the slowdowns of services that share a GPU."""
        which = np.array(kept)
        others = self.pressure[which].sum() - self.pressure[which]
        return np.asarray(np.round(1 + self.sensitivity[which] * others, 4))

    def may_share(self, kept: Sequence[int]) -> bool:
        """Return whether they fit and keep their gSLAs."""
        which = np.array(kept)
        fits = self.memory_mib[which].sum() <= CARD_MIB
        return bool(fits and (self.slowdowns(kept) <= self.gsla[which]).all())

    def sets(self) -> Iterator[tuple[int, ...]]:
        """Yield the sets of workloads that may be on a GPU."""
        for size in range(1, self.most + 1):
            for kept in combinations_with_replacement(range(len(self.copies)), size):
                if self.may_share(kept):
                    yield kept


def drawn(services: int, workloads: int, most: int) -> Services:
    """Return made-up services."""
    draw = np.random.default_rng(SEED)
    return Services(
        np.bincount(np.arange(services) % workloads, minlength=workloads),
        draw.integers(8_000, 60_000, workloads),
        draw.uniform(0.1, 0.6, workloads),
        draw.uniform(0.1, 0.6, workloads),
        np.round(draw.uniform(1.1, 1.6, workloads), 2),
        most,
    )


class Found(NamedTuple):
    """GPUs and a bound below which no plan is (0 for none)."""

    gpus: int
    bound: int


def by_dovetail(instance: Instance, limit_s: float) -> Found:
    """Plan the instance."""
    found = solve(instance, "fewest", time_limit=limit_s, explain=False)
    return Found(round(found.objective), math.ceil((found.bound or 0) - 1e-6))


def instance_of(services: Services, sets: Sequence[tuple[int, ...]]) -> Instance:
    """Return the round."""
    count = int(services.copies.sum())
    build = Instance.build("services", max_jobs_per_gpu=services.most)
    for node in range(-(-count // 8)):
        build.add_node(f"n{node}", 8, model="X", memory_mib=CARD_MIB)
    for k, copies in enumerate(services.copies.tolist()):
        build.add_workload(f"w{k}", float(services.memory_mib[k]))
        for copy in range(copies):
            build.add_job(f"s{k}-{copy}", f"w{k}", gsla=float(services.gsla[k]))
    pairs = [kept for kept in sets if len(kept) == 2]
    build.add_slowdowns(
        [f"w{a}" for a, _ in pairs],
        [f"w{b}" for _, b in pairs],
        np.array([services.slowdowns(kept) for kept in pairs]),
    )
    for kept in sets:
        if len(kept) > 2:
            build.add_slowdown([f"w{k}" for k in kept], services.slowdowns(kept))
    return build.instance()


def _uses(services: Services, sets: Sequence[tuple[int, ...]]) -> list[list[tuple[int, int]]]:
    """Return for each workload the sets with it, and how many of its services each holds."""
    found: list[list[tuple[int, int]]] = [[] for _ in services.copies]
    for number, kept in enumerate(sets):
        for k in dict.fromkeys(kept):
            found[k].append((number, kept.count(k)))
    return found


def by_cpsat(services: Services, sets: Sequence[tuple[int, ...]], limit_s: float) -> Found:
    """Count the GPUs of each set, by OR-Tools."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    most = int(services.copies.sum())
    number = [model.new_int_var(0, most, "") for _ in sets]
    for copies, uses in zip(services.copies.tolist(), _uses(services, sets), strict=True):
        model.add(sum(times * number[k] for k, times in uses) == copies)
    model.minimize(sum(number))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 2
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Found(most, 0)
    return Found(round(solver.objective_value), math.ceil(solver.best_objective_bound - 1e-6))


def by_cbc(services: Services, sets: Sequence[tuple[int, ...]], limit_s: float) -> Found:
    """Count the GPUs of each set, by CBC."""
    import pulp

    model = pulp.LpProblem("fewest", pulp.LpMinimize)
    number = [pulp.LpVariable(f"n{k}", 0, cat="Integer") for k in range(len(sets))]
    model += pulp.lpSum(number)
    for copies, uses in zip(services.copies.tolist(), _uses(services, sets), strict=True):
        model += pulp.lpSum(times * number[k] for k, times in uses) == copies
    model.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=limit_s, gapAbs=0.999, threads=2))
    gpus = round(sum(n.value() or 0 for n in number))
    proven = model.sol_status == pulp.LpSolutionOptimal
    return Found(gpus, gpus if proven else 0)


def by_first_fit(services: Services) -> Found:
    """Place each service on the first GPU where it fits, the largest memory first."""
    gpus: list[list[int]] = []
    for k in np.argsort(-services.memory_mib, kind="stable").tolist():
        for _ in range(int(services.copies[k])):
            fits = (g for g in gpus if len(g) < services.most and services.may_share([*g, k]))
            place = next(fits, None)
            if place is None:
                gpus.append([k])
            else:
                place.append(k)
    return Found(len(gpus), 0)


CASES = {
    "pairs of 300": lambda: drawn(300, 300, 2),
    "pairs of 100": lambda: drawn(1_000, 100, 2),
    "threes of 40": lambda: drawn(1_000, 40, 3),
}
"""300 services of workloads of their own, 1,000 of 100, and 1,000 of 40 with three on a GPU."""


def measured(name: str, limit_s: float) -> Iterator[str]:
    """Yield a line for each way to solve a case."""
    services = CASES[name]()
    sets = list(services.sets())
    instance = instance_of(services, sets)
    yield f"{name}: {int(services.copies.sum()):,} services, {len(sets):,} sets of workloads"
    ways: dict[str, Callable[[], Found]] = {
        "dovetail": lambda: by_dovetail(instance, limit_s),
        "cpsat": lambda: by_cpsat(services, sets, limit_s),
        "cbc": lambda: by_cbc(services, sets, limit_s),
        "first fit": lambda: by_first_fit(services),
    }
    own = math.nan
    for way, find in ways.items():
        begun = sum(_processor_times())
        found = find()
        seconds = sum(_processor_times()) - begun
        own = seconds if way == "dovetail" else own
        bound = f"{found.bound:4}" if found.bound else "none"
        ratio = f"{seconds / own:7.2f}"
        yield f"  {way:9} {found.gpus:4} GPUs, bound {bound}: {seconds:7.2f} CPU s, ratio {ratio}"


def _processor_times() -> tuple[float, float]:
    """Return processor time of this process and of ended child processes."""
    import resource

    child = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time(), child.ru_utime + child.ru_stime


def main() -> None:
    """Solve the cases in every way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each solver")
    options = parser.parse_args()
    compile_kernels()
    for name in options.cases:
        for line in measured(name, options.limit):
            print(line, flush=True)


if __name__ == "__main__":
    main()
