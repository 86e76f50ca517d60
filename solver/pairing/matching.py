"""``match_pairs``: which jobs share a GPU and which run alone, proven optimal.

The problem, for jobs i with sizes s_i and a limit M on GPUs:

    max  sum w_ij x_ij + sum v_i y_i
    s.t. sum_j x_ij + y_i <= 1 for every job (= 1 for required ones),
         sum s_i x_ij + sum s_i y_i <= M,   x, y binary,   x_ij = 0 where s_i != s_j.

The scheme, each step in its module:

1. whole numbers (``fixed_point``), with a class of jobs for each size (``size_class``);
2. start prices from a sample, or from the last round (``prices``);
3. the capacity price (``capacity``): at each price, sparse shortest augmenting paths
   (``assignment``) give the fractional optimum and, at the end, blossoms (``blossom``) the
   integral one, on a sparse graph of likely pairs;
4. pricing over all pairs (``dense``) adds missing pairs to the graph, until none is missing;
5. with one class, merging at the limit gives the optimum (``capacity``); with several, a
   knapsack over their concave values does (``gangs``);
6. the duals are the proof (``certificate``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.budget import UNLIMITED, Budget, OutOfTimeError
from dovetail.formulations.prices import (
    Asks,
    Ends,
    GpuPrice,
    add_to_heap,
    fill_prices,
    fill_starts,
    layout,
    replace_first,
)
from dovetail.instances.errors import ArgumentError, require_type
from dovetail.solver.pairing import blossom
from dovetail.solver.pairing.arguments import PairingArguments, checked
from dovetail.solver.pairing.capacity import Bracket, Joint, merged, node_values, solve_prices
from dovetail.solver.pairing.compilation import (
    KernelCompiler,
    can_compile,
    compiled,
    interpreted,
    is_compiled,
    is_kept,
    keep,
    kernel,
    note_plain,
    quickest,
)
from dovetail.solver.pairing.fixed_point import Rounded, rounded
from dovetail.solver.pairing.gang_options import options_left, pair_values
from dovetail.solver.pairing.gangs import ConcaveValue, Incumbent, close_gap
from dovetail.solver.pairing.kinds import LEAST_JOBS
from dovetail.solver.pairing.prices import PriceStart, known, sampled
from dovetail.solver.pairing.result import Certificate, Dual, Matching, Prices
from dovetail.solver.pairing.size_class import (
    NOT_ALONE,
    ClassData,
    ClassStart,
    SizeClass,
    Tangent,
    exact_sum,
)
from dovetail.solver.pairing.splits import (
    SavedTimeSplits,
    ShorteningSplits,
    SplitValues,
    best_splits,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

OPTIMAL_GAP = 1e-6
"""The relative gap up to which a matching is called optimal (see ``solver.types``)."""

_COMPILED_JOBS = 400
"""Number of jobs in the rounds that compile the kernels: enough for sampling and pricing."""

_FINISH = 2
"""Time kept for the bound at a deadline, as a multiple of the time to read the values."""


_STEPS_TO_READ = 10
"""Steps of work to read the value of a pair."""

for _loop in (fill_starts, fill_prices, add_to_heap, replace_first):
    kernel(_loop)


def match_pairs(
    pair_value: Any,  # noqa: ANN401 - dense or any kind of sparse array
    single_value: Floats | None = None,
    gpus: int | None = None,
    size: Ints | None = None,
    required: Bools | None = None,
    time_limit: float | Budget | None = None,
    seed: int = 0,
    previous: Matching | Prices | None = None,
) -> Matching:
    """Return the most valuable set of pairs and single jobs within the GPUs.

    Parameters
    ----------
    pair_value : (n, n) float array, scipy.sparse array or SplitValues
        Value of each pair, symmetric. NaN or -inf: may not share, as
        for absent pairs of a sparse array. The diagonal is ignored.
    single_value : (n,) float, optional
        Value of each job alone; NaN or -inf: may not run alone. None: no job may.
    gpus : int, optional
        Maximum number of GPUs used. None: no limit.
    size : (n,) int, optional
        Number of GPUs that a job takes, default 1. Only equal sizes pair, and a pair takes that
        many.
    required : (n,) bool, optional
        Jobs that must be placed.
    time_limit : float or Budget, optional
        Seconds after which the best solution and bound so far are returned, or the budget shared
        with other searches. Without cached kernels a round of more than 1,200 jobs still waits for
        their compilation; smaller rounds then run as plain Python, which takes some seconds at a
        thousand jobs (see ``compile_kernels``).
    seed : int
        Seed of the random sample that gives initial prices; decides among optima of equal value.
    previous : Matching or Prices, optional
        The last round's result for the same jobs, or its ``prices.reindexed`` for others.

    Raises
    ------
    ArgumentError
        If an argument breaks its rule.
    """
    budget = time_limit if isinstance(time_limit, Budget) else Budget.of(time_limit)
    began = budget.now()
    problem = checked(pair_value, single_value, gpus, size, required)
    start = previous.prices if isinstance(previous, Matching) else previous
    if start is not None:
        require_type("previous", start, Prices)
    if start is not None and len(start.job) != len(problem):
        raise ArgumentError(
            f"previous must have prices of {len(problem)} jobs, got {len(start.job)}; "
            "see Prices.reindexed"
        )
    with quickest_run(len(problem), budget) as run:
        return matching_of(problem, searched(problem, run, began, budget, seed, start))


@contextmanager
def quickest_run(jobs: int, budget: Budget) -> Iterator[KernelCompiler]:
    """Choose how to run kernels; compile them first if that pays, and count plain Python's time."""
    began = time.monotonic()
    run = quickest(jobs, budget)
    if run is compiled and not is_compiled() and not is_kept():
        compile_kernels()
    yield run
    if run is interpreted:
        note_plain(time.monotonic() - began)


def searched(
    problem: PairingArguments,
    run: KernelCompiler,
    began: float,
    budget: Budget,
    seed: int = 0,
    start: Prices | None = None,
) -> SearchState:
    """Solve a checked problem; return the state of the search at its end."""
    whole = rounded(problem, run)
    budget.spend(_STEPS_TO_READ * len(problem) ** 2)
    reading = budget.now() - began
    search = SearchState(whole, run, budget.earlier(_FINISH * reading))
    if len(problem) > 0:
        search.solve(seed, start)
    return search


def compile_kernels() -> None:
    """Compile all kernels and cache their machine code, unless compiling is disabled.

    Without it, the first round of more than some hundreds of jobs after an installation takes ten
    seconds or more longer, whatever its time limit. Use it in install scripts, images and services
    that must not wait (``python -m dovetail.solver.pairing``). The code is cached next to the
    source, in the user's cache folder or in ``NUMBA_CACHE_DIR``, and is valid for the type of
    processor that it was compiled on.
    """
    if not can_compile():
        return
    rng = np.random.default_rng(0)
    n = _COMPILED_JOBS
    size = rng.choice([1, 2], n)
    values = rng.random((n, n))
    values += values.T
    for dtype in (np.float32, np.float64):
        problem = checked(values.astype(dtype), np.ones(n), n // 2, size, None)
        for budget in (UNLIMITED, Budget.of(0.0)):
            searched(problem, compiled, budget.now(), budget)
        best_splits(np.ones((1, 1, 1)), np.zeros(n, dtype=np.int64), dtype=dtype)
    table: dict[str, Any] = {"slowdown": np.ones((1, 1, 1)), "workload": np.zeros(n, np.int64)}
    one, zero = np.ones(n), np.zeros(n)
    ends = Ends(one, one, zero, zero, np.ones((1, 1)), np.zeros(1), np.zeros(1), 0.0, 1.0, 1.0)
    for splits in (
        SplitValues(np.ones((1, 1, 1)), np.zeros(LEAST_JOBS + 1)),
        SplitValues(**table),
        ShorteningSplits(one, 0.0, **table),
        SavedTimeSplits(ends, **table),
    ):
        problem = checked(splits, np.ones(len(splits)), n // 2, None, None)
        searched(problem, compiled, budget.now(), budget)
    for jobs, gpus in ((3, None), (6, 1)):  # an odd circle, and solutions to merge
        problem = checked(np.ones((jobs, jobs)), None, gpus, None, None)
        searched(problem, compiled, 0.0, UNLIMITED)
    asks = Asks(np.ones(1, dtype=np.int64), np.ones(1), np.ones(1))
    GpuPrice(layout([0.0], asks, compiled), asks, run=compiled)
    none, nothing, no = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_)
    sides, of_sides = np.zeros((0, 2), np.int64), np.zeros((0, 2))
    compiled(pair_values)(
        none, sides, of_sides, sides, nothing, none, none, nothing, nothing, none, no, none,
        of_sides,
    )  # fmt: skip
    compiled(options_left)(
        none, none, nothing, none, none, nothing, none, nothing, none, none, np.ones(1, np.int64),
        none, nothing, 0.0, 0.0, nothing, nothing, none, no, no,
    )  # fmt: skip
    keep()


@dataclass
class SearchState:
    """The state of a search, so that its results at the deadline can be returned."""

    whole: Rounded
    run: KernelCompiler
    budget: Budget
    solvers: list[SizeClass] = field(default_factory=list)
    main: tuple[Tangent, ...] = ()
    likely: list[tuple[Ints, Ints]] = field(default_factory=list)
    incumbent: Incumbent | None = None
    bound2: int = 0
    refined: list[ConcaveValue] = field(default_factory=list)

    def solve(self, seed: int, previous: Prices | None) -> None:
        """Search until the optimum is proven or the deadline passes."""
        try:
            self._solve(seed, previous)
        except OutOfTimeError:
            self._wind_up()

    def _solve(self, seed: int, previous: Prices | None) -> None:
        whole, run, budget = self.whole, self.run, self.budget
        start = self._start(seed, previous)
        self.solvers = [
            SizeClass(c, run, k, start.price * c.size)
            for c, k in zip(whole.classes, start.classes, strict=True)
        ]
        limit, scale = whole.limit, whole.largest
        bracket, _ = solve_prices(
            self.solvers, limit, start.price, scale, False, budget, slope=start.slope
        )
        price, slope = bracket.best.price, bracket.slope
        bracket, priced = solve_prices(self.solvers, limit, price, scale, True, budget, slope=slope)
        if not priced:
            self._wind_up()
            return
        self._prove(bracket.best)
        if len(self.solvers) == 1:
            (solver,) = self.solvers
            single = of_only_class(bracket)
            self._found([merged(solver, single, limit)])
            return
        assert bracket.fewer is not None
        incumbent = self._found([t.partner for t in bracket.fewer.tangents])
        self.refined, self.bound2 = close_gap(
            self.solvers, limit, bracket.best, incumbent, self.bound2, budget
        )

    def _start(self, seed: int, previous: Prices | None) -> PriceStart:
        whole = self.whole
        if previous is not None:
            per_unit = replace(previous, gpu=previous.gpu * whole.gpus_per_unit)
            return known(whole.classes, per_unit, whole.scale, whole.penalty, self.run)
        rng = np.random.default_rng(seed)
        return sampled(whole.classes, whole.limit, whole.largest, rng, self.run, self.budget)

    def _prove(self, best: Joint) -> None:
        """Use the duals of a priced point as the proof."""
        self.main = best.tangents
        self.likely = [s.likely_pairs(t) for s, t in zip(self.solvers, self.main, strict=True)]
        self.bound2 = best.dual2 + 2 * best.price * self.whole.limit

    def _found(self, partners: list[Ints]) -> Incumbent:
        """Keep a solution if it is the best so far."""
        value2 = sum(
            exact_sum(node_values(c, p)[0]) for c, p in zip(self.solvers, partners, strict=True)
        )
        if self.incumbent is None or value2 > self.incumbent.value2:
            self.incumbent = Incumbent(partners, value2)
        return self.incumbent

    def _wind_up(self) -> None:
        """Compute a bound and a solution from the state when the time is over."""
        whole = self.whole
        if not self.solvers:
            self.solvers = [SizeClass(c, self.run, ClassStart.unknown(c), 0) for c in whole.classes]
        if not self.main:
            self.main = tuple(solver.feasible() for solver in self.solvers)
            per_gpu = max(
                -(-t.price // c.size) for t, c in zip(self.main, whole.classes, strict=True)
            )
            self.bound2 = sum(t.dual2 for t in self.main) + 2 * per_gpu * whole.limit
        edges = [(g.first, g.second, g.once) for g in (s.graph for s in self.solvers)]
        self._found(greedy_partners(whole.classes, edges, whole.limit, self.run))


def of_only_class(bracket: Bracket[Joint]) -> Bracket[Tangent]:
    """Return the bracket of the only class, whose price and count are those of all classes."""
    best, fewer, more = (
        None if joint is None else joint.tangents[0]
        for joint in (bracket.best, bracket.fewer, bracket.more)
    )
    assert best is not None
    return Bracket(best, fewer, more, bracket.bound2)


def matching_of(problem: PairingArguments, search: SearchState) -> Matching:
    """Convert the result back to the given jobs and values."""
    n, whole = len(problem), search.whole
    mate = np.full(n, -1, dtype=np.int64)
    if search.incumbent is not None:
        for c, partner in zip(whole.classes, search.incumbent.partners, strict=True):
            mate[c.nodes] = np.where(partner >= 0, c.nodes[partner], -1)
    certificate = _certificate(whole, search)
    prices = _prices(whole, search, n)
    bound = search.bound2 / (2 * whole.scale)
    if (problem.required & (mate < 0)).any():
        mate[:] = -1
        if search.bound2 < -whole.penalty:
            return Matching(mate, -math.inf, -math.inf, 0.0, "infeasible", certificate, prices)
        return Matching(mate, -math.inf, bound, math.inf, "unknown", certificate, prices)
    first = np.flatnonzero(mate > np.arange(n))
    alone = np.flatnonzero(mate == np.arange(n))
    values = problem.value_of(first, mate[first])
    value = math.fsum([*values.tolist(), *problem.single_value[alone].tolist()])
    bound = max(bound, value)
    largest = max(abs(bound), abs(value))
    gap = (bound - value) / largest if largest > 0 else 0.0
    status = "optimal" if gap <= OPTIMAL_GAP else "feasible"
    return Matching(mate, value, bound, gap, status, certificate, prices)


def _certificate(whole: Rounded, search: SearchState) -> Certificate:
    main = tuple(
        _dual(c.nodes, t, whole.scale, search.run)
        for c, t in zip(whole.classes, search.main, strict=False)
    )
    refined = tuple(
        _dual(v.size_class.data.nodes, t, whole.scale, search.run)
        for v in search.refined
        for t in v.tangents
        if t is not v.main
    )
    return Certificate(main, refined)


def _dual(nodes: Ints, tangent: Tangent, scale: float, run: KernelCompiler) -> Dual:
    """Return the duals of a tangent in the units of the values."""
    blossoms = tuple(
        (nodes[members], float(tangent.dual[b]) / (2 * scale))
        for b, members in blossom.members(tangent.parent, tangent.dual, len(nodes), run)
    )
    potential = tangent.potential / (2 * scale)
    return Dual(nodes, tangent.price / scale, potential, blossoms)


def _prices(whole: Rounded, search: SearchState, n: int) -> Prices:
    job = np.full(n, np.nan)
    partner = np.full(n, -1, dtype=np.int64)
    gpu = 0.0
    for c, t in zip(whole.classes, search.main, strict=False):
        job[c.nodes] = t.relaxed / (2 * whole.scale)
        partner[c.nodes] = np.where(t.column >= 0, c.nodes[t.column], -1)
        gpu = max(gpu, t.price / (c.size * whole.gpus_per_unit * whole.scale))
    pairs = [c.nodes[np.array(ends)] for c, ends in zip(whole.classes, search.likely, strict=False)]
    return Prices(gpu, job, partner, np.concatenate(pairs, axis=1) if pairs else None)


def greedy_partners(
    classes: Sequence[ClassData],
    edges: Sequence[tuple[Ints, Ints, Ints]],
    limit: int,
    run: KernelCompiler,
) -> list[Ints]:
    """Take groups by value per GPU: groups with the most required jobs first."""
    offsets = np.cumsum([0, *(len(c.nodes) for c in classes)])
    columns: list[tuple[Ints, ...]] = []
    for c, (first, second, weight), offset in zip(classes, edges, offsets, strict=False):
        alone = np.flatnonzero(c.single > NOT_ALONE)
        a = np.concatenate([first, alone])
        b = np.concatenate([second, alone])
        must = c.rest < 0
        covers = must[a].astype(np.int64) + (must[b] & (a != b))
        value = np.concatenate([weight, c.single[alone]])
        columns.append((a + offset, b + offset, covers, value, np.full(len(a), c.size)))
    a, b, covers, value, size = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.lexsort((-value / size, -covers))
    partner = np.full(int(offsets[-1]), -1, dtype=np.int64)
    run(take_in_order)(order, a, b, covers, value, size, limit, partner)
    return [np.where(partner[i:j] >= 0, partner[i:j] - i, -1) for i, j in pairwise(offsets)]


@kernel
def take_in_order(
    order: Ints,
    a: Ints,
    b: Ints,
    covers: Ints,
    value: Ints,
    size: Ints,
    limit: int,
    partner: Ints,
) -> None:
    """Take every group that still fits, in order, if it has a value or covers a required job."""
    left = limit
    for e in order:
        fits = partner[a[e]] < 0 and partner[b[e]] < 0 and size[e] <= left
        if fits and (value[e] > 0 or covers[e] > 0):
            partner[a[e]] = b[e]
            partner[b[e]] = a[e]
            left -= size[e]
