"""Tally's experiments on a simulated GPU: latency and throughput by way of sharing.

    python benchmarks/isolation/tally.py [--seconds 20] [--seeds 3] [--tables ways loads ...]

Nothing here ran on a GPU (``benchmarks/isolation/simulated_gpu.py``). A request is BERT's: 40
kernels, 3.8 ms alone. Training is drawn from log-normal distributions of kernel times that agree
with what the paper says of ResNet50 (99.3 % of kernels below 0.1 ms) and Whisper (5.6 % above 3.93
ms); those of the others lie between and are our choice, as are the times of blocks. Requests have
pauses between them (exponential), so that the critical client alone is busy for the given load.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
from simulated_gpu import Result, SimulatedGpu, Stream, time_sliced

from dovetail.isolation.scheduler import BOUND_S

SMS = 108
WAYS = ("mps", "mps-priority", "rate", "kernels", "tally")
TRAINING = {  # median of a kernel, deviation of its logarithm, median of a block; seconds
    "ResNet50": (20e-6, 0.655, 15e-6),
    "PointNet": (15e-6, 0.8, 12e-6),
    "BERT": (60e-6, 1.1, 40e-6),
    "GPT2": (90e-6, 1.3, 60e-6),
    "PEGASUS": (90e-6, 1.5, 80e-6),
    "Whisper": (150e-6, 2.055, 150e-6),
}
BOUNDS_S = (1e-5, BOUND_S, 1e-4, 3.16e-4, 1e-3, 1e-2)


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated, of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kernels", type=int, default=60, help="in an iteration of training")
    parser.add_argument("--tables", nargs="+", choices=sorted(TABLES), default=sorted(TABLES))
    options = parser.parse_args()
    for name in options.tables:
        TABLES[name](options)
        print()


class Case:
    """One latency-critical client and its co-runners."""

    def __init__(self, options: argparse.Namespace, seed: int, load: float = 0.5) -> None:
        self.options, self.seed = options, seed
        self.request = Stream.drawn(
            seed, count=40, median_s=75e-6, sigma=0.5, block_median_s=15e-6, sms=SMS, total_s=3.7e-3
        )
        pause_s = self.request.alone_s(SMS) * (1 - load) / load
        self.pauses_s = np.random.default_rng(seed).exponential(pause_s, 1000).tolist()

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

    def run(self, way: str, others: Sequence[Stream], **more: float) -> Result:
        """Simulate one way of sharing."""
        gpu = SimulatedGpu(SMS, way, seed=self.seed, **more)  # type: ignore[arg-type]
        return gpu.run(self.request, self.pauses_s, others, self.options.seconds)

    def figures(
        self, found: Result, others: Sequence[Stream], alone: Result
    ) -> tuple[float, float]:
        """Return the growth of the 99th percentile, and the throughput of the system."""
        p99, own = (np.percentile(one.latencies_s, 99) for one in (found, alone))
        seconds = self.options.seconds
        best_effort = sum(
            made * stream.alone_s(SMS) / seconds
            for made, stream in zip(found.passes, others, strict=True)
        )
        served = len(found.latencies_s) / len(alone.latencies_s)
        return float(p99 / own - 1), float(served + best_effort)


def ways(options: argparse.Namespace) -> None:
    """Fig. 5 and 7b: the 99th percentile with each training, and the system's throughput."""
    print("growth of the 99th percentile / throughput of the system, load 50 %")
    rows: dict[str, list[str]] = {}
    sums: dict[str, list[tuple[float, float]]] = {}
    for training in TRAINING:
        for way in (*WAYS, "time slicing"):
            found = [_way(Case(options, seed), way, training) for seed in range(options.seeds)]
            growth, throughput = np.mean(found, axis=0)
            rows.setdefault(way, []).append(f"{growth:7.1%} / {throughput:4.2f}")
            sums.setdefault(way, []).append((growth, throughput))
    _print(
        ["way", *TRAINING, "mean"],
        [
            [way, *cells, "{:7.1%} / {:4.2f}".format(*np.mean(sums[way], axis=0))]
            for way, cells in rows.items()
        ],
    )


def _way(case: Case, way: str, training: str) -> tuple[float, float]:
    others = [case.training(training)]
    alone = case.run("alone", others)
    if way == "time slicing":
        latencies, passes = time_sliced(
            case.request, case.pauses_s, others[0], case.options.seconds, sms=SMS
        )
        sliced = Result(latencies, (passes,), np.empty(0), np.empty(0, dtype=bool), 0)
        return case.figures(sliced, others, alone)
    return case.figures(case.run(way, others), others, alone)


def loads(options: argparse.Namespace) -> None:
    """Fig. 6a: by load, with Whisper."""
    print("growth of the 99th percentile / throughput of the system with Whisper, by load")
    parts = (0.1, 0.3, 0.5, 0.7, 0.9)
    rows = []
    for way in ("rate", "tally"):
        cells = []
        for load in parts:
            found = []
            for seed in range(options.seeds):
                case = Case(options, seed, load)
                others = [case.training("Whisper")]
                alone = case.run("alone", others)
                found.append(case.figures(case.run(way, others), others, alone))
            cells.append("{:7.1%} / {:4.2f}".format(*np.mean(found, axis=0)))
        rows.append([way, *cells])
    _print(["way", *(f"{load:.0%}" for load in parts)], rows)


def crowd(options: argparse.Namespace) -> None:
    """Fig. 7a: with up to ten best-effort clients."""
    print("Tally with several ResNet50 trainings, load 10 %")
    rows = []
    for count in (1, 2, 4, 8, 10):
        found = []
        for seed in range(options.seeds):
            case = Case(options, seed, 0.1)
            others = [case.training("ResNet50", k) for k in range(count)]
            alone = case.run("alone", others)
            found.append(case.figures(case.run("tally", others), others, alone))
        rows.append(
            [
                str(count),
                f"{np.mean(found, axis=0)[0]:.1%}",
                f"{np.mean(found, axis=0)[1]:.2f}",
            ]
        )
    _print(["others", "growth", "throughput"], rows)


def bounds(options: argparse.Namespace) -> None:
    """Fig. 7c and section 5.6: by the bound on the turnaround."""
    print("growth of the 99th percentile / throughput of the system, by bound")
    rows = []
    for training in ("ResNet50", "BERT", "Whisper"):
        cells = []
        for bound_s in BOUNDS_S:
            found = []
            for seed in range(options.seeds):
                case = Case(options, seed)
                others = [case.training(training)]
                alone = case.run("alone", others)
                ran = case.run("tally", others, bound_s=bound_s)
                found.append(case.figures(ran, others, alone))
            cells.append("{:7.1%} / {:4.2f}".format(*np.mean(found, axis=0)))
        rows.append([training, *cells])
    _print(["training", *(f"{bound_s * 1e3:g} ms" for bound_s in BOUNDS_S)], rows)


def turnarounds(options: argparse.Namespace) -> None:
    """Table 1 and the bound: how long the GPU takes to be given up."""
    print("turnaround, microseconds: mean / 99th percentile / longest, and launches")
    rows = []
    for training in TRAINING:
        for way in ("kernels", "tally"):
            times, kept, launches = [], [], 0
            for seed in range(options.seeds):
                case = Case(options, seed)
                found = case.run(way, [case.training(training)])
                times.append(found.turnarounds_s)
                kept.append(found.turnarounds_s[found.bounded])
                launches += found.launches
            all_s, kept_s = np.concatenate(times) * 1e6, np.concatenate(kept) * 1e6
            longest = f"{kept_s.max():.1f} of {len(kept_s)}" if len(kept_s) else "-"
            rows.append(
                [
                    training,
                    way,
                    f"{all_s.mean():.0f} / {np.percentile(all_s, 99):.0f} / {all_s.max():.0f}",
                    longest,
                    str(launches),
                ]
            )
    _print(["training", "way", "all", "longest that should keep 31.6", "launches"], rows)


def _print(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


TABLES: dict[str, Callable[[argparse.Namespace], None]] = {
    "ways": ways,
    "loads": loads,
    "crowd": crowd,
    "bounds": bounds,
    "turnarounds": turnarounds,
}

if __name__ == "__main__":
    main()
