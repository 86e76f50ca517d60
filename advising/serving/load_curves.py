"""What a server promises under load, alone and slowed by co-runners.

**Dilation.** A server that is slowed by a factor s does everything in s times as long. Requests
that come at a rate r find it exactly as the server alone finds requests at the rate s r, on a clock
that runs s times as slow. So if ``T(r)`` is a latency alone at the rate r, the latency beside
co-runners is::

    T_shared(r) = s * T(s * r)

With a number of clients that each wait for their answer before they ask again (a closed loop), the
load does not depend on the clock, and the latency is ``s * T(clients)``. No model of queues or of
batches is needed: the curve T is measured. The slowdown is that while the server works; a bound of
it gives a bound of the latency.

Between measured loads T is interpolated linearly after taking the running maximum. That is not too
low if the latency bends upwards between two runs, as queues make it do. Below the least measured
load the latency there counts, above the largest one nothing is promised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.serving.scenario import (
    ACTIVITY,
    LOADS,
    AloneRun,
    ServedModel,
    Serving,
    TogetherRun,
    load_of,
)

Floats = NDArray[np.float64]

MOST_DILATION: Final = 1_000.0
"""The largest slowdown that is looked for."""

BISECTIONS: Final = 60
"""Steps of a bisection, which is then exact to the last digit."""


@dataclass(frozen=True, eq=False)
class LoadCurve:
    """The latencies of a server alone on a GPU, by its load.

    Attributes
    ----------
    loads : (n,) float
        Measured loads, rising.
    open_loop : bool
        Whether the load is a rate of requests; else it is a number of clients.
    tails : mapping of str to (n,) float
        The 99th percentiles at these loads in milliseconds, not falling.
    activity : mapping of str to (n,) float
        The activity of the GPU at these loads, not falling; only what is known at all loads.
    """

    loads: Floats
    open_loop: bool
    tails: Mapping[str, Floats]
    activity: Mapping[str, Floats]

    def latency(self, tail: str, load: float, slowdown: float = 1.0) -> float:
        """Return a 99th percentile at a load and a slowdown; infinite beyond what is measured."""
        reached = load * slowdown if self.open_loop else load
        if reached > self.loads[-1] * (1 + 1e-12):
            return math.inf
        return slowdown * float(np.interp(reached, self.loads, self.tails[tail]))

    def keeps(self, load: float, promised: Mapping[str, float], slowdown: float = 1.0) -> bool:
        """Return whether all promised 99th percentiles are kept at a load and a slowdown."""
        return all(self.latency(tail, load, slowdown) <= most for tail, most in promised.items())

    def promise(self, load: float, promised: Mapping[str, float]) -> float:
        """Return the largest slowdown at which all promises are kept; 0 if none is.

        Parameters
        ----------
        load : float
            The load of the server.
        promised : mapping of str to float
            The promised 99th percentiles in milliseconds.
        """
        if not self.keeps(load, promised):
            return 0.0
        if self.keeps(load, promised, MOST_DILATION):
            return MOST_DILATION
        low, high = 1.0, MOST_DILATION
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.keeps(load, promised, middle) else (low, middle)
        return low

    def activity_at(self, load: float) -> dict[str, float]:
        """Return the activity of the GPU at a load, at most the largest measured one."""
        return {name: float(np.interp(load, self.loads, of)) for name, of in self.activity.items()}


def curve_of(serving: Serving, name: str, gpu: str) -> LoadCurve | None:
    """Return the curve of a model on a GPU; None if nothing is measured there.

    A server alone is no slower than beside others: without runs alone, those of the model beside
    others bound its latencies.
    """
    model = serving.models[name]
    alone = [run for run in model.runs if serving.on(gpu, run)]
    if alone:
        return _curve(model, [(load_of(run)[1], run.p99_ms) for run in alone], _activity(alone))
    beside = [run for run in serving.together if serving.on(gpu, run)]
    points = [point for run in beside for point in _points(run, serving.kind(name))]
    return _curve(model, points, {}) if points else None


def _points(run: TogetherRun, name: str) -> list[tuple[float, Mapping[str, float]]]:
    seats = zip(run.models, run.loads, run.p99_ms, strict=True)
    return [(load, tails) for model, load, tails in seats if model == name]


def _curve(
    model: ServedModel,
    points: Sequence[tuple[float, Mapping[str, float]]],
    activity: Mapping[str, Mapping[float, float]],
) -> LoadCurve:
    loads = np.unique([load for load, _ in points])
    tails = {
        tail: _rising([max(tails[tail] for at, tails in points if at == load) for load in loads])
        for tail in model.p99_ms
    }
    known = {name: _rising([of[load] for load in loads]) for name, of in activity.items()}
    return LoadCurve(loads, model.load[0] == LOADS[0], tails, known)


def _activity(runs: Sequence[AloneRun]) -> dict[str, dict[float, float]]:
    """Return the largest activity at each load, for what all runs tell."""
    found: dict[str, dict[float, float]] = {}
    for name in ACTIVITY:
        values = [(load_of(run)[1], getattr(run, name)) for run in runs]
        if any(value is None for _, value in values):
            continue
        found[name] = {}
        for load, value in values:
            found[name][load] = max(value, found[name].get(load, 0.0))
    return found


def _rising(values: Sequence[float]) -> Floats:
    return np.asarray(np.maximum.accumulate(np.asarray(values, np.float64)))
