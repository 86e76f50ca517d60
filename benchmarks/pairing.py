"""Compare the pairing engine with other solvers of the same problem: time, memory, gap.

    python benchmarks/pairing.py                              all tables
    python benchmarks/pairing.py --sizes 100 300 --limit 20   a short form
    python benchmarks/pairing.py --sizes 10000 --tables plain --methods engine "lap.lapjv (bound)"
    python benchmarks/pairing.py --picture docs/pairing.svg   with a log-log picture

Three tables: the plain maximum weight matching of one dense graph by every method (build
included; ``lap.lapjv`` gives only the bound of the double cover); the engine under a limit on
GPUs, by family of instances; the engine started from the last round's prices after 3 % of the
jobs changed. Every cell runs in a process of its own; medians of at least 5 runs unless a run
takes too long (the table says how many). The instances are synthetic: a contention model with
4 % noise, gSLAs from 1 to 2 and a limit of 40 % of the GPUs asked for.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

RUNS = 5
LONG_RUN_S = 20.0
"""A method whose first run takes longer is run once."""

QUOTA = 0.4
CHANGED = 0.03
FAMILIES = (
    "one GPU a job", "gangs", "64 workloads", "300 workloads", "euclidean", "uniform", "separable",
)  # fmt: skip
SHARES = np.arange(1, 10, dtype=np.float32) / 10


@dataclass
class Instance:
    """The arguments of ``match_pairs``."""

    pair_value: Floats
    single_value: Floats
    gpus: int
    size: NDArray[np.int64]


def instance(family: str, n: int, seed: int = 1) -> Instance:
    """Generate an instance of a family."""
    rng = np.random.default_rng(seed)
    size = np.ones(n, dtype=np.int64)
    single = np.ones(n, dtype=np.float32)
    if family == "euclidean":
        x, y = rng.random((2, n), dtype=np.float32)
        values = 2 - np.hypot(x[:, None] - x, y[:, None] - y)
    elif family == "separable":
        x = rng.random(n, dtype=np.float32)
        values = 2 - x[:, None] * x
    elif family == "uniform":
        values = 1 + rng.random((n, n), dtype=np.float32)
        mirror(values)
    else:
        kinds = int(family.split()[0]) if family.endswith("workloads") else n
        values, size = contention(rng, n, min(n, kinds), gangs=family != "one GPU a job")
        single = size.astype(np.float32)
    np.fill_diagonal(values, np.nan)
    return Instance(values, single, round(QUOTA * int(size.sum())), size)


def contention(
    rng: np.random.Generator, n: int, kinds: int, gangs: bool
) -> tuple[Floats, NDArray[np.int64]]:
    """Return throughputs of all pairs at their best split, NaN where gSLA or memory forbid.

    A job of compute part c that can use a fraction q of the SMs, next to one with the rest, is
    slowed to c max(1, q / share) + (1 - c) max(1, sum of the memory bandwidths asked for).
    """
    compute = rng.uniform(0.2, 0.9, kinds).astype(np.float32)
    demand = rng.uniform(0.1, 1.0, kinds).astype(np.float32)
    bandwidth = rng.uniform(0.05, 0.95, kinds).astype(np.float32)
    memory = rng.choice([4, 8, 12, 16, 24, 32, 40], kinds)
    workers = rng.choice([1, 2, 4, 8], kinds, p=[0.75, 0.08, 0.10, 0.07]) if gangs else None
    kind = np.arange(n) if kinds == n else rng.integers(0, kinds, n)
    gsla = rng.uniform(1, 2, n).astype(np.float32)
    c, q, b, mib = compute[kind], demand[kind], bandwidth[kind], memory[kind]
    size = np.ones(n, dtype=np.int64) if workers is None else workers[kind].astype(np.int64)
    noise = _noise(kinds, rng)
    values = np.full((n, n), np.nan, dtype=np.float32)
    for i in range(n):
        j = slice(i + 1, n)
        shared = np.maximum(1, b[i] + b[j])
        best = np.zeros(n - i - 1, dtype=np.float32)
        factor, mirrored = noise[kind[i], kind[j]], noise[kind[j], kind[i]]
        for share in SHARES:
            own = (c[i] * max(1, q[i] / share) + (1 - c[i]) * shared) * factor
            other = (c[j] * np.maximum(1, q[j] / (1 - share)) + (1 - c[j]) * shared) * mirrored
            allowed = (own <= gsla[i]) & (other <= gsla[j])
            best = np.maximum(best, np.where(allowed, 1 / own + 1 / other, 0))
        fits = (best > 0) & (mib[i] + mib[j] <= 48) & (size[i] == size[j])
        values[i, j] = np.where(fits, best * size[i], np.nan)
    mirror(values)
    return values, size


def _noise(kinds: int, rng: np.random.Generator) -> Floats:
    noise = rng.standard_normal((kinds, kinds), dtype=np.float32)
    noise *= 0.04
    noise += 1
    return noise


def mirror(values: Floats) -> None:
    """Copy the upper triangle to the lower one."""
    for i in range(len(values)):
        values[i + 1 :, i] = values[i, i + 1 :]


def gains(given: Instance) -> Floats:
    """Return what sharing gains over half of both jobs' GPUs each, NaN where nothing."""
    single = given.single_value
    gain = given.pair_value - (single[:, None] + single) / 2
    gain[~(gain > 0)] = np.nan
    return gain


def plain_engine(weight: Floats) -> float:
    from dovetail.solver.pairing import match_pairs

    matching = match_pairs(weight)
    assert matching.status == "optimal"
    return matching.value


def _edges(weight: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    first, second = np.nonzero(np.triu(np.nan_to_num(weight), 1) > 0)
    return first, second, weight[first, second]


def plain_rustworkx(weight: Floats) -> float:
    import rustworkx as rx

    first, second, value = _edges(weight)
    whole = np.round(value.astype(float) * 1e6).astype(np.int64).tolist()
    graph = rx.PyGraph(multigraph=False)
    graph.add_nodes_from(range(len(weight)))
    graph.add_edges_from(list(zip(first.tolist(), second.tolist(), whole, strict=True)))
    matching = rx.max_weight_matching(graph, weight_fn=int)
    return math.fsum(float(weight[a, b]) for a, b in matching)


def plain_networkx(weight: Floats) -> float:
    import networkx as nx

    graph = nx.Graph()
    edges = (part.tolist() for part in _edges(weight))
    graph.add_weighted_edges_from(zip(*edges, strict=True))
    return math.fsum(float(weight[a, b]) for a, b in nx.max_weight_matching(graph))


def plain_lapjv(weight: Floats) -> float:
    """Return the bound: the optimal assignment on the double cover is twice it."""
    import lap

    value = np.nan_to_num(weight).astype(np.float64)
    return -float(lap.lapjv(-value)[0]) / 2


def plain_cpsat(weight: Floats) -> float:
    from ortools.sat.python import cp_model

    first, second, value = _edges(weight)
    model = cp_model.CpModel()
    covering: list[list[Any]] = [[] for _ in weight]
    edges = [model.new_bool_var("") for _ in first]
    for x, i, j in zip(edges, first.tolist(), second.tolist(), strict=True):
        covering[i].append(x)
        covering[j].append(x)
    for group in covering:
        model.add_at_most_one(group)
    whole = np.round(value.astype(float) * 1e6).astype(np.int64).tolist()
    model.maximize(cp_model.LinearExpr.weighted_sum(edges, whole))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 2
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value / 1e6


def plain_highs(weight: Floats) -> float:
    import scipy.sparse as sp
    from scipy.optimize import Bounds, LinearConstraint, milp

    first, second, value = _edges(weight)
    m = len(first)
    ends = (np.concatenate([first, second]), np.tile(np.arange(m), 2))
    rows = sp.csr_array((np.ones(2 * m), ends), shape=(len(weight), m))
    result = milp(
        -value.astype(float),
        integrality=np.ones(m),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(rows, -np.inf, 1),
        options={"mip_rel_gap": 1e-6},
    )
    assert result.status == 0
    return -float(result.fun)


PLAIN: dict[str, tuple[Callable[[Floats], float], str]] = {
    "engine": (plain_engine, "dovetail"),
    "rustworkx": (plain_rustworkx, "rustworkx"),
    "networkx": (plain_networkx, "networkx"),
    "lap.lapjv (bound)": (plain_lapjv, "lap"),
    "CP-SAT": (plain_cpsat, "ortools"),
    "HiGHS MIP": (plain_highs, "scipy"),
}


def timed(call: Callable[[], Any]) -> dict[str, Any]:
    """Return median seconds of wall and processor, the number of runs, and the last result."""
    walls: list[float] = []
    processor: list[float] = []
    while len(walls) < RUNS:
        wall, cpu = time.perf_counter(), time.process_time()
        result = call()
        walls.append(time.perf_counter() - wall)
        processor.append(time.process_time() - cpu)
        if walls[0] > LONG_RUN_S:
            break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "wall": float(np.median(walls)),
        "cpu": float(np.median(processor)),
        "runs": len(walls),
        "mib": peak,
        "result": result,
    }


def plain_cell(method: str, family: str, n: int) -> dict[str, Any]:
    """Solve the plain matching of a graph."""
    solve = PLAIN[method][0]
    if method == "engine":
        _warm_up()
    weight = gains(instance(family, n))
    cell = timed(lambda: solve(weight))
    return {"value": cell.pop("result"), **cell}


def limit_cell(family: str, n: int) -> dict[str, Any]:
    """Solve an instance under its limit on GPUs; check the proof."""
    from dovetail.solver.pairing import certificate_errors, match_pairs

    _warm_up()
    given = instance(family, n)
    cell = timed(lambda: match_pairs(**vars(given)))
    matching = cell.pop("result")
    began = time.perf_counter()
    errors = certificate_errors(matching, **vars(given))
    assert not errors, errors
    check_s = time.perf_counter() - began
    return {**cell, "value": matching.value, "gap": matching.gap, "check": check_s}


def churn_cell(family: str, n: int) -> dict[str, Any]:
    """Solve rounds of which 3 % of the jobs are new, cold and from the last round's prices."""
    from dovetail.solver.pairing import match_pairs

    _warm_up()
    rng = np.random.default_rng(0)
    new = round(CHANGED * n)
    given = instance(family, n + (RUNS + 1) * new)
    now = np.arange(n)
    prices = None
    cold, warm = [], []
    for step in range(RUNS + 1):
        size = given.size[now]
        values = np.ascontiguousarray(given.pair_value[np.ix_(now, now)])
        arguments = (values, given.single_value[now], round(QUOTA * int(size.sum())), size)
        began = time.perf_counter()
        match_pairs(*arguments)
        middle = time.perf_counter()
        matching = match_pairs(*arguments, previous=prices)
        if prices is not None:
            cold.append(middle - began)
            warm.append(time.perf_counter() - middle)
        kept = np.sort(rng.choice(n, n - new, replace=False))
        now = np.concatenate([now[kept], n + np.arange(step * new, (step + 1) * new)])
        prices = matching.prices.reindexed(np.append(kept, np.full(new, -1)))
    return {"cold": float(np.median(cold)), "wall": float(np.median(warm)), "runs": len(warm)}


def _warm_up() -> None:
    """Load the compiled kernels, all of them."""
    from dovetail.solver.pairing import match_pairs

    given = instance("64 workloads", 300)
    match_pairs(**vars(given))
    match_pairs(gains(given))


CELLS: dict[str, Callable[..., dict[str, Any]]] = {
    "plain": plain_cell,
    "limit": limit_cell,
    "churn": churn_cell,
}


def run_cell(name: str, limit_s: float, *arguments: object) -> dict[str, Any] | str:
    """Run a cell in a process of its own; return why there is no result if there is none."""
    command = [sys.executable, __file__, "--cell", json.dumps([name, *arguments])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=True)
    except subprocess.TimeoutExpired:
        return f"> {limit_s:g} s"
    except subprocess.CalledProcessError as error:
        return "failed: " + error.stderr.strip().splitlines()[-1]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def plain_table(options: argparse.Namespace, family: str) -> Iterator[str]:
    """Yield the rows of all methods on one family's plain matching."""
    yield f"\n### Plain maximum weight matching, {family}\n"
    yield "| method | " + " | ".join(f"{n:,} jobs" for n in options.sizes) + " |"
    yield "|---|" + "---|" * len(options.sizes)
    own: dict[int, dict[str, Any]] = {}
    stopped = set()
    for method in options.methods:
        package = PLAIN[method][1]
        if find_spec("lap" if package == "lap" else package) is None:
            yield f"| {method} | not installed |"
            continue
        row = []
        for n in options.sizes:
            if method in stopped:
                row.append("–")
                continue
            cell = run_cell("plain", options.limit, method, family, n)
            if isinstance(cell, str):
                stopped.add(method)
                row.append(cell)
                continue
            options.points.setdefault(f"{method}, {family}", []).append((n, cell["wall"]))
            if method == "engine":
                own[n] = cell
            row.append(_plain_entry(method, cell, own.get(n)))
        yield f"| {method} | " + " | ".join(row) + " |"


def _plain_entry(method: str, cell: dict[str, Any], own: dict[str, Any] | None) -> str:
    entry = f"{cell['wall']:.3g} s, {cell['mib']:.0f} MiB"
    if cell["runs"] < RUNS:
        entry += f" ({cell['runs']} run)"
    if method == "engine" or own is None:
        return entry
    apart = abs(cell["value"] - own["value"]) / own["value"]
    same = "" if "bound" in method or apart < 1e-5 else f", value differs by {apart:.1e}"
    return f"{entry}, {cell['wall'] / own['wall']:.0f} x{same}"


def limit_table(options: argparse.Namespace) -> Iterator[str]:
    """Yield the rows of the engine under a limit on GPUs."""
    yield "\n### The engine under a limit on GPUs (every proof checked on all pairs)\n"
    yield "| family | jobs | wall s | processor s | peak MiB | gap | check s | runs |"
    yield "|---|---|---|---|---|---|---|---|"
    for family in FAMILIES:
        for n in options.sizes:
            cell = run_cell("limit", options.limit, family, n)
            if isinstance(cell, str):
                yield f"| {family} | {n} | {cell} | | | | | |"
                break
            options.points.setdefault(f"engine with limit, {family}", []).append((n, cell["wall"]))
            yield (
                f"| {family} | {n:,} | {cell['wall']:.4f} | {cell['cpu']:.4f} | {cell['mib']:.0f} "
                f"| {cell['gap']:.1e} | {cell['check']:.3f} | {cell['runs']} |"
            )


def churn_table(options: argparse.Namespace) -> Iterator[str]:
    """Yield the rows of the warm start."""
    yield f"\n### {CHANGED:.0%} of the jobs changed\n"
    yield "| family | jobs | cold s | from the last prices s | ratio |"
    yield "|---|---|---|---|---|"
    for family in ("one GPU a job", "gangs", "64 workloads"):
        for n in options.sizes:
            cell = run_cell("churn", options.limit, family, n)
            if isinstance(cell, str):
                yield f"| {family} | {n} | {cell} | | |"
                break
            ratio = cell["wall"] / cell["cold"]
            yield f"| {family} | {n:,} | {cell['cold']:.4f} | {cell['wall']:.4f} | {ratio:.2f} |"


def draw(points: dict[str, list[tuple[int, float]]], path: str) -> None:
    """Write a log-log picture of seconds by jobs."""
    if find_spec("matplotlib") is None:
        print("matplotlib is not installed: no picture", file=sys.stderr)
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6))
    axes.set_prop_cycle(color=plt.get_cmap("tab20").colors)
    for name, line in points.items():
        others = not name.startswith("engine")
        if others and not name.endswith(FAMILIES[0]):
            continue
        style = {"linestyle": "--", "marker": "s"} if others else {"marker": "o"}
        axes.loglog(*zip(*sorted(line), strict=True), label=name, linewidth=1, **style)
    axes.set(xlabel="jobs", ylabel="seconds (median)")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, bbox_inches="tight")


def heading() -> str:
    """Say where this was measured."""
    versions = []
    for package in ("numpy", "numba", "rustworkx", "networkx", "lap", "ortools", "scipy"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    return (
        f"Python {platform.python_version()}, {platform.machine()}, {', '.join(versions)}. "
        f"Seconds are medians of {RUNS} runs; compiled code loaded before."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000, 3000, 10_000])
    parser.add_argument("--limit", type=float, default=300.0, help="seconds per cell")
    parser.add_argument("--tables", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--methods", nargs="+", default=list(PLAIN), choices=list(PLAIN))
    parser.add_argument("--keep", help="JSON file of the picture's points: added to, all drawn")
    parser.add_argument("--picture", help="file of the log-log picture")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        name, *arguments = json.loads(options.cell)
        print(json.dumps(CELLS[name](*arguments)))
        return
    subprocess.run([sys.executable, "-m", "dovetail.solver.pairing"], check=True)  # compiles once
    kept = Path(options.keep) if options.keep else None
    options.points = json.loads(kept.read_text()) if kept and kept.exists() else {}
    print(heading())
    tables: dict[str, Callable[[], Iterator[Iterator[str]]]] = {
        "plain": lambda: (plain_table(options, f) for f in ("one GPU a job", "64 workloads")),
        "limit": lambda: iter([limit_table(options)]),
        "churn": lambda: iter([churn_table(options)]),
    }
    for name in options.tables:
        for table in tables[name]():
            for line in table:
                print(line, flush=True)
    if kept:
        kept.write_text(json.dumps(options.points))
    if options.picture:
        draw(options.points, options.picture)


if __name__ == "__main__":
    main()
