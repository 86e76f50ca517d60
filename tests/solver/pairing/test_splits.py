"""The best split of every pair, against the definition."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.solver import best_splits, certificate_errors, match_pairs
from dovetail.solver.pairing import matching, prices, splits
from dovetail.solver.pairing.compilation import compiled, interpreted
from dovetail.solver.pairing.dense import FORBIDDEN
from dovetail.solver.pairing.splits import NO_SPLIT, SplitValues

KINDS = 4
MIRROR = np.array([0, 3, 4, 1, 2])
"""No cap for either, then two splits and the same from the other side."""


def arguments(seed: int, n: int = 13) -> dict:
    rng = np.random.default_rng(seed)
    table = (KINDS, KINDS, len(MIRROR))
    slowdown = np.where(rng.random(table) < 0.8, rng.choice([1.0, 1.5, 2.0, 3.0], table), np.nan)
    given = {
        "slowdown": slowdown,
        "workload": rng.integers(0, KINDS, n),
        "bound": slowdown * rng.choice([1.0, 1.1], table),
        "gsla": rng.choice([1.6, 2.5, np.inf], n),
        "memory": rng.integers(1, 5, n).astype(float),
        "memory_limit": 6.0,
        "weight": rng.choice([1.0, 2.0], n),
        "size": rng.choice([1, 1, 2], n),
        "running": rng.random(n) < 0.3,
        "allowed": rng.random((n, len(MIRROR))) < 0.8,
    }
    optional = [name for name in given if name not in ("slowdown", "workload")]
    for name in rng.choice(optional, rng.integers(0, 4), replace=False):
        del given[name]
    return given | {"mirror": MIRROR, "gain": str(rng.choice(["throughput", "slowdown"]))}


def by_definition(given: dict, i: int, j: int) -> tuple[float, int]:
    """The value of a pair, i < j, and the split of i."""
    a, b = given["workload"][[i, j]]
    slowdown = given["slowdown"]
    bound = given.get("bound", slowdown)
    n = len(given["workload"])
    gsla = given.get("gsla", np.full(n, np.inf))
    weight = given.get("weight", np.ones(n))
    memory = given.get("memory", np.zeros(n))
    size = given.get("size", np.ones(n))
    running = given.get("running", np.zeros(n, dtype=bool))
    allowed = given.get("allowed", np.ones((n, len(MIRROR)), dtype=bool))
    best = np.nan, NO_SPLIT
    if size[i] != size[j] or (running[i] and running[j]):
        return best
    if memory[i] + memory[j] > given.get("memory_limit", np.inf):
        return best
    for p, q in enumerate(MIRROR):
        own, other = slowdown[a, b, p], slowdown[b, a, q]
        known = bound[a, b, p] <= gsla[i] and bound[b, a, q] <= gsla[j] and own > 0 and other > 0
        if known and allowed[i, p] and allowed[j, q]:
            gain = weight[i] / own + weight[j] / other
            if given["gain"] == "slowdown":
                gain = -weight[i] * own - weight[j] * other
            if not gain <= best[0]:
                best = gain, p
    return best


@pytest.fixture(params=["compiled", "vectorised"])
def form(request, monkeypatch):
    if request.param == "vectorised":
        monkeypatch.setattr(splits, "can_compile", lambda: False)
    else:
        monkeypatch.setattr(splits, "is_compiled", lambda: True)


@pytest.mark.parametrize("seed", range(15))
def test_every_pair_by_definition(seed, form):
    given = arguments(seed)
    found = best_splits(**given)
    for i in range(len(given["workload"])):
        assert np.isnan(found.value[i, i])
        assert found.split[i, i] == NO_SPLIT
        for j in range(i):
            value, split = by_definition(given, j, i)
            assert found.value[j, i] == value or (np.isnan(value) and np.isnan(found.value[j, i]))
            assert found.split[j, i] == split
            mirrored = MIRROR[split] if split != NO_SPLIT else NO_SPLIT
            assert found.split[i, j] == mirrored
    assert np.array_equal(found.value, found.value.T, equal_nan=True)


def test_rows_in_any_cut_and_wider_than_a_tile_are_the_same(monkeypatch):
    given = arguments(3, n=700)
    whole = best_splits(**given)
    order = np.argsort(given["workload"], kind="stable")

    def in_pieces(_, kernel, rows, columns, *arrays):
        for first in range(0, rows, 37):
            compiled(kernel)(first, min(first + 37, rows), *arrays)

    monkeypatch.setattr(splits, "over_rows", in_pieces)
    cut = best_splits(**given)
    monkeypatch.setattr(splits, "can_compile", lambda: False)
    plain = best_splits(**given)
    assert len(order) > 512
    for other in (cut, plain):
        assert np.array_equal(whole.value, other.value, equal_nan=True)
        assert np.array_equal(whole.split, other.split)


def test_narrow_values_are_the_wide_ones_rounded(form):
    given = arguments(8)
    wide, narrow = best_splits(**given), best_splits(**given, dtype=np.float32)
    assert narrow.value.dtype == np.float32
    assert np.array_equal(wide.value.astype(np.float32), narrow.value, equal_nan=True)
    assert np.array_equal(wide.split, narrow.split)


def test_from_slowdowns_to_a_proven_plan(form):
    rng = np.random.default_rng(2)
    slowdown = rng.uniform(1, 3, (KINDS, KINDS, 9))
    n = 40
    given = {
        "slowdown": slowdown,
        "workload": rng.integers(0, KINDS, n),
        "gsla": rng.uniform(1.5, 3, n),
    }
    found = best_splits(**given)
    limits = {"single_value": np.ones(n), "gpus": 16}
    matching = match_pairs(found.value, **limits)
    assert matching.status == "optimal"
    assert not certificate_errors(matching, found.value, **limits)
    total = 0.0
    split = found.of_mates(matching.mate)
    for i, j in enumerate(matching.mate):
        if j < 0 or i == j:
            assert split[i] == -1
            total += float(i == j)
            continue
        assert split[i] == 8 - split[j]
        own = slowdown[given["workload"][i], given["workload"][j], split[i]]
        assert own <= given["gsla"][i]
        total += 1 / own
    assert total == pytest.approx(matching.value)


@pytest.mark.parametrize("seed", range(6))
def test_values_made_where_asked_for_are_those_of_the_matrix(seed, form):
    given = arguments(seed, n=40)
    values, whole = SplitValues(**given), best_splits(**given)
    assert np.array_equal(np.asarray(values), whole.value, equal_nan=True)
    first, second = np.nonzero(~np.isnan(whole.value))
    found, split = values.best(first, second)
    assert np.array_equal(found, whole.value[first, second])
    assert np.array_equal(found, values[first, second])
    upper = first < second
    assert np.array_equal(split[upper], whole.split[first, second][upper])
    assert values.largest >= np.abs(found).max(initial=0.0)

    limits = {"gpus": 20, "size": given.get("size"), "single_value": np.zeros(40)}
    lazy, dense = match_pairs(values, **limits), match_pairs(whole.value, **limits)
    assert lazy.status == "optimal"
    assert lazy.value == pytest.approx(dense.value, abs=1e-12)
    assert not certificate_errors(lazy, values, **limits)


def test_rounded_values_are_the_matrix_rounded_up(form):
    given = arguments(3, n=600)
    values, scale = SplitValues(**given), 2.0**20
    jobs = np.arange(0, 600, 2)
    fixed, joined = values.rounded(jobs, scale)
    matrix = np.asarray(values)[np.ix_(jobs, jobs)]
    units = np.where(np.isnan(matrix), FORBIDDEN, np.ceil(matrix * scale))
    assert np.array_equal(fixed, units)
    assert np.array_equal(joined, (~np.isnan(matrix)).sum(axis=1))


@pytest.mark.parametrize("seed", range(30))
def test_a_class_without_a_matrix_gives_the_same_optimum(seed, monkeypatch):
    monkeypatch.setattr(matching, "quickest", lambda jobs, budget: compiled)
    monkeypatch.setattr(prices, "_UNSAMPLED", 6)
    monkeypatch.setattr(splits, "LEAST_JOBS", 0)
    rng = np.random.default_rng(seed)
    given = arguments(seed, n=40)
    power = rng.random(given["slowdown"].shape)
    values = SplitValues(**given, cost=power + power.transpose(1, 0, 2)[:, :, MIRROR])
    if seed % 2:
        values = values.weighed(1.0, 0.2)
    if seed % 3:
        surplus = np.where(rng.random(40) < 0.2, np.inf, rng.random(40))
        values = values.limited(rng.random(40), surplus, np.ones(40))
    limits = {"gpus": 20, "size": given.get("size"), "single_value": rng.random(40)}
    matrix = match_pairs(np.asarray(values), **limits)

    monkeypatch.setattr(splits, "suits", lambda jobs, kinds, splits: True)
    found = match_pairs(values, **limits)
    assert (found.status, found.value) == ("optimal", pytest.approx(matrix.value, abs=1e-12))
    assert not certificate_errors(found, values, **limits)
    monkeypatch.setattr(matching, "quickest", lambda jobs, budget: interpreted)
    assert np.array_equal(match_pairs(values, **limits).mate, found.mate)

    jobs = np.flatnonzero(given.get("size", np.ones(40)) == 1)
    pairs = values.by_kinds(jobs, 2.0**20)
    fixed = pairs.sample(np.arange(len(jobs))).fixed
    first, second = np.divmod(np.arange(len(jobs) ** 2), len(jobs))
    assert np.array_equal(pairs.values(first, second, compiled), fixed.ravel())
    assert (pairs.highest(compiled) >= np.where(fixed > FORBIDDEN, fixed, -np.inf).max(1)).all()

    potential, price = rng.integers(0, 2**20, len(jobs)), int(rng.integers(2**18))
    raised = potential + pairs.shortfall(potential, price, compiled)
    nothing = np.full(len(jobs), -1)
    for duals, slack in ((raised, 0), (potential, 0), (potential, -(2**18))):
        count, _ = pairs.short(duals, price, slack, (nothing, nothing), 1, compiled)
        short = 2 * (fixed.astype(np.int64) - price) - duals - duals[:, None] > slack
        assert count.sum() == np.triu(short & (fixed > FORBIDDEN), 1).sum()
        assert duals is potential or not count.any()


@pytest.mark.parametrize("given", [{}, {"weight": np.zeros(9)}])
def test_no_value_is_above_the_highest_by_kinds(given, monkeypatch):
    monkeypatch.setattr(splits, "LEAST_JOBS", 0)
    monkeypatch.setattr(splits, "suits", lambda jobs, kinds, splits: True)
    values = SplitValues(TABLE, np.arange(9) % 2, **given)
    assert (values.highest(2.0**20) >= np.nanmax(np.asarray(values), axis=1) * 2.0**20).all()


@pytest.mark.parametrize(("jobs", "mib"), [(2000, 27), (2002, 1), (100_000, 1)])
def test_the_memory_is_that_of_kinds_where_they_replace_the_matrix(jobs, mib):
    values = SplitValues(np.ones((20, 20, 3)), np.arange(jobs) % 20)
    assert values.needed_bytes < mib * 2**20


@pytest.mark.parametrize("weighted", [False, True])
def test_thousands_of_jobs_of_few_workloads_by_kinds(weighted):
    rng = np.random.default_rng(3)
    n = splits.LEAST_JOBS + 50
    given = {"slowdown": rng.uniform(1, 3, (2, 2, 3)), "workload": rng.integers(0, 2, n)}
    if weighted:
        given["weight"] = rng.uniform(0.5, 2, n)
    values = SplitValues(**given)
    assert values.by_kinds(np.arange(n), 1.0) is not None
    limits = {"gpus": 900, "single_value": given.get("weight", np.ones(n))}
    found, matrix = match_pairs(values, **limits), match_pairs(np.asarray(values), **limits)
    assert (found.status, found.value) == ("optimal", pytest.approx(matrix.value, rel=1e-6))
    assert not certificate_errors(found, values, **limits)


TABLE = np.ones((2, 2, 3))
WRONG = [
    ({"slowdown": np.ones((2, 3, 4))}, "slowdown must have shape (k, k, s)"),
    ({"slowdown": np.ones((2, 2))}, "slowdown must have three dimensions"),
    ({"slowdown": np.ones((2, 2, 256))}, "with s from 1 to 255"),
    ({"slowdown": -TABLE}, "slowdown must be > 0, got -1.0 with workload 0"),
    ({"slowdown": 0 * TABLE}, "slowdown must be > 0, got 0.0 with workload 0"),
    ({"workload": [0, 2]}, "workload must be whole numbers from 0 to 1, got 2 at 1"),
    ({"workload": [0, 0.5]}, "workload must be whole numbers"),
    ({"workload": [[0, 1]]}, "workload must be a vector"),
    ({"bound": np.ones((2, 2, 2))}, "bound must have the shape of slowdown"),
    ({"gsla": [1.0]}, "gsla must have shape (2,)"),
    ({"gsla": [1.0, np.nan]}, "gsla must be >= 0, got nan at 1"),
    ({"memory": [1.0, -1.0]}, "memory must be >= 0, got -1.0 at 1"),
    ({"memory_limit": np.nan}, "memory_limit must be >= 0"),
    ({"weight": [1.0, -2.0]}, "weight must be >= 0"),
    ({"size": [1, 0]}, "size must be whole numbers from 1 to 1099511627776, got 0 at 1"),
    ({"size": [1]}, "size must have shape (2,)"),
    ({"running": [0, 1]}, "running must be a boolean array"),
    ({"allowed": np.ones((2, 2), dtype=bool)}, "allowed must be a boolean array of shape (2, 3)"),
    ({"mirror": [1, 2, 0]}, "mirror must map 3 splits onto each other in pairs"),
    ({"mirror": [0, 1]}, "mirror must map 3 splits"),
    ({"gain": "energy"}, "gain must be 'throughput' or 'slowdown', got 'energy'"),
    ({"dtype": int}, "dtype must be float32 or float64"),
]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(("wrong", "rule"), WRONG)
def test_what_is_refused(wrong, rule):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared
        best_splits(**({"slowdown": TABLE, "workload": [0, 1]} | wrong))
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)
