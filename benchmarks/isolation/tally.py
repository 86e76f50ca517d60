"""Tally's experiments on a simulated GPU: latency and throughput by way of sharing.

    python benchmarks/isolation/tally.py [--seconds 8] [--seeds 3] [--tables ways loads ...]

Nothing here ran on a GPU (``benchmarks/isolation/simulated``). A request is BERT's: 40
kernels, 3.8 ms alone. Training is drawn from log-normal distributions of kernel times that agree
with what the paper says of ResNet50 (99.3 % of kernels below 0.1 ms) and Whisper (5.6 % above 3.93
ms); those of the others lie between and are our choice, as are the times of blocks. Requests arrive
by a Poisson process, or in bursts that we drew (``--arrivals bursts``), at the given load.

Growths are of the 99th percentile of two times, against the service alone with the same arrivals:
from a request's first launch to its end, as Tally's own benchmark takes it (``infer_monitor.py`` of
tally-bench), and from its arrival to its end. Throughput is the sum of both jobs', each as a part
of its own alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray
from simulated.arrivals import bursts, poisson, regular
from simulated.gpu import Result, SimulatedGpu
from simulated.kernels import Stream, Work
from simulated.ways import WAYS, Way

from dovetail.isolation.scheduler import BOUND_S

SMS: Final = 108
TRAINING: Final = {  # median of a kernel, deviation of its logarithm, median of a block; seconds
    "ResNet50": (20e-6, 0.655, 15e-6),
    "PointNet": (15e-6, 0.8, 12e-6),
    "BERT": (60e-6, 1.1, 40e-6),
    "GPT2": (90e-6, 1.3, 60e-6),
    "PEGASUS": (90e-6, 1.5, 80e-6),
    "Whisper": (150e-6, 2.055, 150e-6),
}
BOUNDS_S: Final = (1e-5, BOUND_S, 1e-4, 3.16e-4, 1e-3, 1e-2)
ARRIVALS: Final = {"poisson": poisson, "bursts": bursts, "regular": regular}

PAPER: Final[dict[Way, tuple[str, str]]] = {
    "mps": ("345%", "0.84"),
    "mps-priority": ("196%", "0.81"),
    "time-slicing": ("252%", "1.05"),
    "tgs": ("189%", "0.80"),
    "gate": ("8% to 10x", ""),
    "gate-workers": ("7.2%", "1"),
}
"""Of Tally's paper, sections 5.2 and 5.5: the mean growth of the 99th percentile over all 36 pairs,
and Tally's throughput as a part of the way's. For ``gate``, its scheduler with whole kernels."""


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="simulated, of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kernels", type=int, default=60, help="in an iteration of training")
    parser.add_argument("--arrivals", choices=sorted(ARRIVALS), default="poisson")
    parser.add_argument("--tables", nargs="+", choices=sorted(TABLES), default=sorted(TABLES))
    options = parser.parse_args()
    for name in options.tables:
        TABLES[name](options)
        print()


class Case:
    """One latency-critical client and its co-runners."""

    def __init__(
        self,
        options: argparse.Namespace,
        seed: int,
        load: float = 0.5,
        *,
        request_s: float = 3.7e-3,
    ) -> None:
        self.options, self.seed, self.load = options, seed, load
        self.request = Stream.drawn(
            seed,
            count=40,
            median_s=75e-6,
            sigma=0.5,
            block_median_s=15e-6,
            sms=SMS,
            total_s=request_s,
        )
        self.arrivals_s = self.arrivals(seed, getattr(options, "arrivals", "poisson"))

    def arrivals(self, seed: int, kind: str) -> NDArray[np.float64]:
        """Return moments at which requests arrive, at the load."""
        rate = self.load / self.request.alone_s(SMS)
        return ARRIVALS[kind](seed, rate, self.options.seconds)

    def training(self, name: str, seed: int = 0) -> Stream:
        """Return the kernels of an iteration."""
        median_s, sigma, block_s = TRAINING[name]
        return Stream.drawn(
            100 * self.seed + seed,
            count=self.options.kernels,
            median_s=median_s,
            sigma=sigma,
            block_median_s=block_s,
            sms=SMS,
        )

    def run(self, way: Way, others: Sequence[Work], bound_s: float = BOUND_S) -> Result:
        """Simulate one way of sharing."""
        gpu = SimulatedGpu(SMS, way, seed=self.seed, bound_s=bound_s)
        return gpu.run(self.request, self.arrivals_s, others, self.options.seconds)

    @cached_property
    def alone(self) -> Result:
        """The latency-critical client alone."""
        return self.run("alone", ())

    def figures(self, found: Result, others: Sequence[Work]) -> NDArray[np.float64]:
        """Return what a way of sharing led to.

        Growths of the 99th percentile from the first launch and from the arrival, and throughputs
        of the latency-critical client and of the others.
        """
        alone = self.alone
        grown = [
            np.percentile(one, 99) / np.percentile(own, 99) - 1
            for one, own in (
                (found.services_s, alone.services_s),
                (found.latencies_s, alone.latencies_s),
            )
        ]
        made = sum(
            passes * work.stream.alone_s(SMS) / self.options.seconds
            for passes, work in zip(found.passes, others, strict=True)
        )
        return np.array([*grown, len(found.latencies_s) / len(alone.latencies_s), made])


def ways(options: argparse.Namespace) -> None:
    """Fig. 5 and 7b: each way with each training."""
    of_all: dict[Way, list[NDArray[np.float64]]] = {way: [] for way in WAYS if way != "alone"}
    for training in TRAINING:
        cases = [Case(options, seed) for seed in range(options.seeds)]
        others = [[Work(case.training(training))] for case in cases]
        for way, found in of_all.items():
            figures = [
                case.figures(case.run(way, other), other)
                for case, other in zip(cases, others, strict=True)
            ]
            found.append(np.mean(figures, axis=0))
    print(f"load 50 %, arrivals {options.arrivals}\n")
    for what, column in (("first launch", 0), ("arrival", 1)):
        rows = [
            [way, *(f"{one[column]:.1%}" for one in (*found, np.mean(found, axis=0)))]
            for way, found in of_all.items()
        ]
        for row, way in zip(rows, of_all, strict=True):
            row.append(PAPER.get(way, ("", ""))[0])
        _print([f"p99 from {what}", *TRAINING, "mean", "paper"], rows)
        print()
    ours = np.mean(of_all["gate-slices"], axis=0)[2:].sum()
    rows = []
    for way, found in of_all.items():
        mean = np.mean(found, axis=0)
        rows.append([way, *(f"{one[2]:.2f} + {one[3]:.2f}" for one in (*found, mean))])
        rows[-1] += [f"{mean[2:].sum():.2f}", f"{ours / mean[2:].sum():.2f}"]
        rows[-1].append(PAPER.get(way, ("", ""))[1])
    head = ["both", "gate-slices / it", "Tally / it in the paper"]
    _print(["throughput", *TRAINING, "mean", *head], rows)


def idle(options: argparse.Namespace) -> None:
    """The best-effort client with the library, while no request comes."""
    print("throughput of the best-effort client while no request comes")
    rows = []
    for way in ("blocking", "blocking-forms", "gate-due", "gate-slices", "gate-workers"):
        cells = []
        for training in TRAINING:
            case = Case(options, 0)
            case.arrivals_s = np.empty(0)
            stream = case.training(training)
            made = case.run(way, [Work(stream)]).passes[0]
            cells.append(f"{made * stream.alone_s(SMS) / options.seconds:.2f}")
        rows.append([way, *cells])
    _print(["way", *TRAINING], rows)


def loads(options: argparse.Namespace) -> None:
    """Fig. 6a: by load."""
    parts = (0.1, 0.3, 0.5, 0.7, 0.9)
    print("p99 from first launch, from arrival / throughput of both, by load")
    rows = []
    for training in ("BERT", "GPT2", "Whisper"):
        cases = [[Case(options, seed, load) for seed in range(options.seeds)] for load in parts]
        for way in ("mps", "tgs", "gate-due", "gate-slices"):
            cells = []
            for of_load in cases:
                found = []
                for case in of_load:
                    others = [Work(case.training(training))]
                    found.append(case.figures(case.run(way, others), others))
                first, arrival, own, made = np.mean(found, axis=0)
                cells.append(f"{first:.1%}, {arrival:.1%} / {own + made:.2f}")
            rows.append([training, way, *cells])
    _print(["training", "way", *(f"{load:.0%}" for load in parts)], rows)


def crowd(options: argparse.Namespace) -> None:
    """Fig. 7a: up to ten best-effort clients that serve requests, too."""
    print("ResNet50 inference (1.37 ms), each client at a load of 10 %, the first latency-critical")
    rows = []
    for count in (1, 2, 4, 6, 8, 10):
        for way in ("mps", "gate-due", "gate-slices"):
            found = []
            for seed in range(options.seeds):
                case = Case(options, seed, 0.1, request_s=1.31e-3)
                others = [
                    Work(case.request, case.arrivals(1000 + 100 * seed + k, options.arrivals))
                    for k in range(count)
                ]
                ran = case.run(way, others)
                figures = case.figures(ran, others)
                served = len(ran.latencies_s) + sum(ran.passes)
                wanted = len(case.arrivals_s) + sum(len(one.arrivals_s) for one in others)
                found.append([*figures[:2], served / options.seconds * 60, served / wanted])
            first, arrival, minute, part = np.mean(found, axis=0)
            cells = [f"{first:.1%}", f"{arrival:.1%}", f"{minute:,.0f}", f"{part:.0%}"]
            rows.append([str(count), way, *cells])
    head = ["p99 from first launch", "from arrival", "answered a minute", "of those that came"]
    _print(["others", "way", *head], rows)


def bounds(options: argparse.Namespace) -> None:
    """Fig. 7c and section 5.6: by the bound on the turnaround."""
    print("gate-slices: p99 from first launch / throughput of both, by bound")
    rows = []
    for training in ("ResNet50", "BERT", "Whisper"):
        cases = [Case(options, seed) for seed in range(options.seeds)]
        cells = []
        for bound_s in BOUNDS_S:
            found = []
            for case in cases:
                others = [Work(case.training(training))]
                ran = case.run("gate-slices", others, bound_s)
                found.append(case.figures(ran, others))
            first, _, own, made = np.mean(found, axis=0)
            cells.append(f"{first:.1%} / {own + made:.2f}")
        rows.append([training, *cells])
    _print(["training", *(f"{bound_s * 1e3:g} ms" for bound_s in BOUNDS_S)], rows)


def due(options: argparse.Namespace) -> None:
    """What a look at when the next request is due is worth, by how requests arrive."""
    print("whole kernels: p99 from first launch, from arrival / throughput of both")
    rows = []
    for arrivals in ARRIVALS:
        options = argparse.Namespace(**{**vars(options), "arrivals": arrivals})
        for way in ("gate", "gate-due"):
            cells = []
            for training in TRAINING:
                found = []
                for seed in range(options.seeds):
                    case = Case(options, seed)
                    others = [Work(case.training(training))]
                    found.append(case.figures(case.run(way, others), others))
                first, arrival, own, made = np.mean(found, axis=0)
                cells.append(f"{first:.1%}, {arrival:.1%} / {own + made:.2f}")
            rows.append([arrivals, way, *cells])
    _print(["arrivals", "way", *TRAINING], rows)


def turnarounds(options: argparse.Namespace) -> None:
    """Table 1 and the bound: how long the GPU takes to be given up."""
    print("turnaround, microseconds: mean / 99th percentile / longest, and launches")
    rows = []
    for training in TRAINING:
        for way in ("blocking", "gate-due", "gate-slices", "gate-workers"):
            times, kept, launches = [], [], 0
            for seed in range(options.seeds):
                case = Case(options, seed)
                found = case.run(way, [Work(case.training(training))])
                times.append(found.turnarounds_s)
                kept.append(found.turnarounds_s[found.bounded])
                launches += found.launches
            of_all, of_kept = np.concatenate(times) * 1e6, np.concatenate(kept) * 1e6
            rows.append([training, way, _spread(of_all), _spread(of_kept), str(len(of_kept))])
            rows[-1].append(str(launches))
    head = ["all", "those that should keep 31.6", "of them", "launches"]
    _print(["training", "way", *head], rows)


def _spread(times: NDArray[np.float64]) -> str:
    if not len(times):
        return "-"
    return f"{times.mean():.0f} / {np.percentile(times, 99):.0f} / {times.max():.0f}"


def _print(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


TABLES: Final[dict[str, Callable[[argparse.Namespace], None]]] = {
    "ways": ways,
    "idle": idle,
    "loads": loads,
    "crowd": crowd,
    "bounds": bounds,
    "due": due,
    "turnarounds": turnarounds,
}

if __name__ == "__main__":
    main()
