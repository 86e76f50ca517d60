"""Which servers may share a GPU at which split, from measurements or by the law of MPS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.serving.load_curves import Floats, LoadCurve
from dovetail.advising.serving.scenario import ServedModel, Serving, TogetherRun
from dovetail.advising.sharing import CONFIDENCE, RESERVE_MIB, SPLITS
from dovetail.formulations.budget import Budget
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Workload
from dovetail.predictors.kernels import KernelsPredictor

SERVER_CASES: Final = ("low", "likely")
"""The cases, by what sharing saves: bounds of the slowdowns while all servers of a GPU work, and
the slowdowns to be expected beside co-runners at their load."""

_SPLITS: Final[Mapping[int, tuple[tuple[int, ...], ...]]] = {
    2: SPLITS,
    3: ((33, 33, 33), *sorted(set(permutations((50, 25, 25))))),
    4: ((25, 25, 25, 25), *sorted(set(permutations((40, 20, 20, 20))))),
}
"""The SM shares that are compared, in per cent, by the number of servers."""

MOST_SETS: Final = 200_000
"""Sets of as many servers that may be compared."""

_SETS_AT_ONCE: Final = 10_000

_CLOSE: Final = 1e-9
"""Loads that differ by no more than this part are equal."""


class ServerLevel(NamedTuple):
    """A server of a model, when the load of the model is divided equally among so many.

    Attributes
    ----------
    name : str
        The model.
    servers : int
        How many servers it has.
    load : float
        The load of each.
    promise : float
        The largest slowdown at which a server keeps all promises.
    memory_mib, startup_mib : float
        The memory of a server, and what it needs in addition while it starts.
    curve : LoadCurve
        Its latencies alone.
    model : ServedModel
        The model as the file has it.
    """

    name: str
    servers: int
    load: float
    promise: float
    memory_mib: float
    startup_mib: float
    curve: LoadCurve
    model: ServedModel

    def latencies(self, slowdown: float) -> dict[str, float]:
        """Return the 99th percentiles in milliseconds at a slowdown."""
        return {tail: self.curve.latency(tail, self.load, slowdown) for tail in self.model.p99_ms}


class SharedSplit(NamedTuple):
    """Servers on one GPU at the best split.

    Attributes
    ----------
    levels : tuple of ServerLevel
        The servers, in the order of the file.
    shares : tuple of int
        The SM share of each in per cent.
    slowdown : tuple of float
        The slowdown of each; of measured ones, the slowdown that would bring the server as near to
        its promise as the measured latencies are, at least 1.
    measured_ms : tuple of dict of str to float, or None
        The 99th percentiles of each in milliseconds, if they were measured together.
    used : float
        The largest part of a promise that is used, at most 1 if all are kept.
    """

    levels: tuple[ServerLevel, ...]
    shares: tuple[int, ...]
    slowdown: tuple[float, ...]
    measured_ms: tuple[dict[str, float], ...] | None
    used: float

    @property
    def names(self) -> tuple[str, ...]:
        """The models of the servers."""
        return tuple(level.name for level in self.levels)

    @property
    def kept(self) -> bool:
        """Whether all promises are kept."""
        return self.used <= 1.0

    @property
    def latencies(self) -> tuple[dict[str, float], ...]:
        """The 99th percentiles of each server in milliseconds."""
        if self.measured_ms is not None:
            return self.measured_ms
        slowed = zip(self.levels, self.slowdown, strict=True)
        return tuple(level.latencies(slowdown) for level, slowdown in slowed)


def start_order(levels: Sequence[ServerLevel]) -> list[int]:
    """Return the order in which to start servers on a GPU, one after another.

    What needs most in addition while it starts goes first, when least is in use; then the larger
    server.
    """
    return sorted(
        range(len(levels)), key=lambda k: (-levels[k].startup_mib, -levels[k].memory_mib, k)
    )


def fit_together(levels: Sequence[ServerLevel], card_mib: float) -> bool:
    """Return whether servers fit on a card, also while each starts."""
    used = RESERVE_MIB
    for k in start_order(levels):
        used += levels[k].memory_mib
        if used + levels[k].startup_mib > card_mib:
            return False
    return True


def shared_splits(
    serving: Serving,
    gpu: str,
    card_mib: float,
    levels: Sequence[ServerLevel],
    case: str,
    budget: Budget,
) -> Iterator[SharedSplit]:
    """Yield the best split of every combination of servers that fits on a GPU.

    A split at which measured latencies keep all promises under loads as high or higher is taken
    before any estimate, unless one was broken there under loads as low or lower. An estimate is not
    taken at a split that gives a server that broke its promise no more SMs than it had, and its
    co-runners no fewer.

    Raises
    ------
    OutOfTimeError
        When the budget is spent.
    """
    law = _ServerLaw(levels, case)
    members: list[tuple[int, ...]] = [(k,) for k in range(len(levels))]
    for size in range(2, serving.max_servers_per_gpu + 1):
        members = _fitting(members, levels, card_mib, budget)
        splits = np.array(_SPLITS[size], np.int64)
        measured = _MeasuredServers(serving, gpu, size)
        for start in range(0, len(members), _SETS_AT_ONCE):
            budget.check()
            combos = members[start : start + _SETS_AT_ONCE]
            slowdowns = law.slowdowns(np.array(combos, np.int64), splits)
            promise = np.array([level.promise for level in levels])[np.array(combos, np.int64)]
            used = (slowdowns / promise[:, np.newaxis, :]).max(axis=2)
            for row, combo in enumerate(combos):
                own = tuple(levels[k] for k in combo)
                if measured.tells_of(own):
                    if (found := measured.best(own)) is not None:
                        yield found
                        continue
                    used[row, measured.forbidden(own, splits)] = np.inf
                k = int(used[row].argmin())
                slowdown = tuple(slowdowns[row, k].tolist())
                yield SharedSplit(
                    own, tuple(splits[k].tolist()), slowdown, None, float(used[row, k])
                )


def _fitting(
    fewer: Sequence[tuple[int, ...]],
    levels: Sequence[ServerLevel],
    card_mib: float,
    budget: Budget,
) -> list[tuple[int, ...]]:
    """Return the sets of servers that fit on a card, with one server more than those that do."""
    found: list[tuple[int, ...]] = []
    for chosen in fewer:
        budget.check()
        for k in range(chosen[-1], len(levels)):
            combo = (*chosen, k)
            if combo.count(k) <= levels[k].servers and fit_together(
                [levels[k] for k in combo], card_mib
            ):
                found.append(combo)
        if len(found) > MOST_SETS:
            rule = f"at most {MOST_SETS:,} sets of servers are compared, got more"
            raise UnsupportedError(f"{rule}: lower max_servers_per_gpu")
    return found


class _ServerLaw:
    """The law of MPS for the latencies of servers in a case.

    A latency grows by the slowdown while the server works: that it is idle at other times helps its
    throughput, and no request. In the case likely, the server is as active as alone while it works,
    and its co-runners are as active as they are on average. In the case low, it takes ``1 / share``
    times as long with a share of the SMs, as prefill may, which uses all of them, and its
    co-runners work at the same time.
    """

    def __init__(self, levels: Sequence[ServerLevel], case: str) -> None:
        self._low = case == "low"
        beside = [_working(level) if self._low else _on_average(level) for level in levels]
        own = [_AT_WORST] * len(levels) if self._low else [_working(level) for level in levels]
        self._workloads = {str(k): workload for k, workload in enumerate((*beside, *own))}
        self._count = len(levels)
        self._law = KernelsPredictor(confidence=CONFIDENCE)

    def slowdowns(self, members: NDArray[np.int64], splits: NDArray[np.int64]) -> Floats:
        """Return the slowdowns of all combinations at all splits, (combinations, splits, k)."""
        count, size = members.shape
        rows, shares = np.repeat(members, len(splits), axis=0), np.tile(splits, (count, 1))
        own = [self._of(rows, shares, k) for k in range(size)]
        return np.stack(own, axis=1).reshape(count, len(splits), size)

    def _of(self, rows: NDArray[np.int64], shares: NDArray[np.int64], k: int) -> Floats:
        """Return the slowdown of one server of each row."""
        of_one = rows.copy()
        of_one[:, k] += self._count
        found = self._law.predict(self._workloads, of_one, shares)
        all_of = found.upper if self._low and found.upper is not None else found.slowdown
        return np.asarray(all_of[:, k], np.float64)


def _on_average(level: ServerLevel) -> Workload:
    """Return a server as a workload with its activity at its load, busy all the time if unknown."""
    activity = level.curve.activity_at(level.load)
    return _workload(activity if activity.keys() & {"gpu_util", "sm_active"} else _BUSY)


def _working(level: ServerLevel) -> Workload:
    """Return a server as a workload that works all the time.

    Its activity then is that at its load, for the part of the time in which it works; if that part
    is unknown, the activity at the largest measured load.
    """
    activity = level.curve.activity_at(level.load)
    working = activity.get("gpu_util")
    if working:
        return _workload({name: min(1.0, of / working) for name, of in activity.items()})
    return _workload(level.curve.activity_at(float(level.curve.loads[-1])) | _BUSY)


def _workload(activity: Mapping[str, float]) -> Workload:
    return Workload.from_data({"memory_mib": 0.0, "metrics": dict(activity)})


_BUSY: Final = {"gpu_util": 1.0}

_AT_WORST: Final = Workload.from_data(
    {
        "memory_mib": 0.0,
        "metrics": {"gpu_util": 1.0, "sm_active": 1.0, "dram_active": 0.0},
        "throughput": {share: share / 100 for share in range(1, 101)},
    }
)
"""A server that takes ``1 / share`` times as long with a share of the SMs."""


class _SeenTogether(NamedTuple):
    """A measurement of the servers of a combination, in their order.

    ``used`` are the parts of their promises.
    """

    shares: tuple[int, ...]
    slowdown: tuple[float, ...]
    latencies: tuple[dict[str, float], ...]
    used: tuple[float, ...]

    def forbids(self, shares: Sequence[int]) -> bool:
        """Return whether one broke its promise with no fewer SMs beside others with no more."""
        less = [a <= b for a, b in zip(shares, self.shares, strict=True)]
        more = [a >= b for a, b in zip(shares, self.shares, strict=True)]
        return any(
            part > 1 and less[k] and all(more[:k] + more[k + 1 :])
            for k, part in enumerate(self.used)
        )


class _MeasuredServers:
    """The measurements of so many servers together on a GPU."""

    def __init__(self, serving: Serving, gpu: str, size: int) -> None:
        self._kind = serving.kind
        self._runs: dict[tuple[str, ...], list[TogetherRun]] = {}
        for run in serving.together:
            if serving.on(gpu, run) and len(run.models) == size:
                self._runs.setdefault(tuple(sorted(map(self._kind, run.models))), []).append(run)

    def tells_of(self, levels: Sequence[ServerLevel]) -> bool:
        """Return whether such servers were measured together."""
        return bool(self._runs) and self._key(levels) in self._runs

    def _key(self, levels: Sequence[ServerLevel]) -> tuple[str, ...]:
        return tuple(sorted(self._kind(level.name) for level in levels))

    def best(self, levels: tuple[ServerLevel, ...]) -> SharedSplit | None:
        """Return the best split at which all promises were kept under loads as high or higher.

        One at which a promise was broken under loads as low or lower is left out.
        """
        broken = {seen.shares for seen in self._broken(levels)}
        found = [
            seen
            for seen in self._seen(levels, heavier=True)
            if max(seen.used) <= 1 and seen.shares not in broken
        ]
        if not found:
            return None
        best = min(found, key=lambda seen: max(seen.used))
        return SharedSplit(levels, best.shares, best.slowdown, best.latencies, max(best.used))

    def forbidden(
        self, levels: Sequence[ServerLevel], splits: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return at which splits a measurement shows that a promise would be broken."""
        broken = self._broken(levels)
        return np.array([any(seen.forbids(row) for seen in broken) for row in splits.tolist()])

    def _broken(self, levels: Sequence[ServerLevel]) -> list[_SeenTogether]:
        """Return the measurements in which a promise was broken under loads as low or lower."""
        return [seen for seen in self._seen(levels, heavier=False) if max(seen.used) > 1]

    def _seen(self, levels: Sequence[ServerLevel], heavier: bool) -> Iterator[_SeenTogether]:
        """Yield the measurements at loads not below those of the servers, or not above them."""
        kinds = [self._kind(level.name) for level in levels]
        for run in self._runs.get(self._key(levels), ()):
            of_run = [self._kind(name) for name in run.models]
            for order in permutations(range(len(kinds))):
                if [of_run[k] for k in order] != kinds:
                    continue
                loads = [run.loads[k] for k in order]
                pairs = zip(loads, levels, strict=True)
                if all(_at_least(*((a, b.load) if heavier else (b.load, a))) for a, b in pairs):
                    yield _seen_of(run, order, levels)


def _at_least(load: float, other: float) -> bool:
    return load >= other * (1 - _CLOSE)


def _seen_of(
    run: TogetherRun, order: Sequence[int], levels: Sequence[ServerLevel]
) -> _SeenTogether:
    latencies, parts = [], []
    for k, level in zip(order, levels, strict=True):
        promised = level.model.p99_ms
        latencies.append({tail: run.p99_ms[k][tail] for tail in promised})
        parts.append(max(run.p99_ms[k][tail] / most for tail, most in promised.items()))
    shares = tuple(run.share[k] for k in order)
    # Servers of one model at one share are interchangeable: the worse of them counts for all.
    worst: dict[tuple[str, int], float] = {}
    for level, share, part in zip(levels, shares, parts, strict=True):
        seat = level.name, share
        worst[seat] = max(part * level.promise, worst.get(seat, 1.0))
    seats = zip(levels, shares, strict=True)
    slowdown = tuple(worst[level.name, share] for level, share in seats)
    return _SeenTogether(shares, slowdown, tuple(latencies), tuple(parts))
