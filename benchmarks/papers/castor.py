"""Castor's simulation (2025, section 9.4): 240 Philly jobs on 128 GPUs, at 0.5 to 2 times the load.

    python benchmarks/papers/castor.py --out castor.csv

16 nodes of 8 GPUs. Details that the paper states only in general terms are chosen here:

- Busiest period: as in Pollux, whose settings the paper follows, the eight hours of Philly with the
  most submissions (2,335 jobs), of which each seed draws 240.
- Load: the paper has 120 to 480 jobs for 0.5 to 2 times the load; these numbers are drawn from the
  same eight hours.
- Durations: the period's mean is 2.5 hours, and one job in a hundred runs for longer than 34; the
  paper's jobs need 0.78 hours on average (table 5: 2.64 h under FIFO, of which 1.86 h in the
  queue) and 200 to 2,000 iterations. They are cut at 4 hours, which makes the mean 0.74.
- Gangs: 99 % of the period's jobs have one GPU, with which 240 jobs never fill the cluster. The
  paper's are up to 8 GPUs in 66 % of the jobs and 16 or 32 in the rest; sizes are drawn so: 1, 2,
  4 or 8 and 16 or 32, each as likely. ``--gangs recorded`` keeps those of the trace.
- Pairs: the paper measured its own on A6000. Ours are Lucid's on RTX 3090, an Ampere GPU, too;
  their interference is mild (mean slowdown 1.09). World ``v100`` takes Gavel's, which
  is harsh (1.9). Neither has memory or iteration times by batch size, so no policy splits batches.
- The Venus trace (HeliosData; docs/howto/traces.md) was not run: Philly only. Pollux needs gradient
  noise: left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import worlds
from runs import (
    Case,
    Row,
    by_policy,
    common_options,
    end_in_one_line,
    label,
    number,
    parsed,
    print_table,
    print_waits,
    results,
)

from dovetail.executor.simulation.beliefs import beliefs_named
from dovetail.executor.simulation.setup import Scenario, Setup
from dovetail.instances.traces import Trace, read_trace
from dovetail.instances.traces.filters import at_most, busiest_period, from_zero

POLICIES = ("fifo", "sjf", "ssf", "tiresias", "lucid", "sjf-ffs", "castor", "dovetail")
LOADS = (0.5, 1.0, 1.5, 2.0)
PERIOD_S = 8 * 3600.0
LONGEST_S = 4 * 3600.0

SMALL_PART: Final = 0.66
SMALL: Final = (1, 2, 4, 8)
LARGE: Final = (16, 32)

PAPER = {
    "fifo": ("2.64", "1.86", "1.60 + 1.04"),
    "sjf": ("1.88", "1.09", "1.51 + 0.36"),
    "tiresias": ("2.57", "1.75", "1.26 + 1.31"),
    "lucid": ("2.10", "1.26", "0.78 + 1.32"),
    "castor": ("1.54", "0.41", "1.09 + 0.45"),
}
"""Table 5, at load 1: mean JCT and queueing in hours, and what small and large jobs add to JCT."""


@dataclass(frozen=True)
class GangSetup(Setup):
    """A setup whose gang sizes are drawn by the seed, too."""

    def scenario(self, seed: int) -> Scenario:
        """Return what a seed draws, with the paper's gang sizes."""
        drawn = super().scenario(seed)
        rng = np.random.default_rng([seed, 1])
        jobs = zip(drawn.trace.jobs, _sizes(rng, len(drawn.trace.jobs)), strict=True)
        trace = drawn.trace.replace(replace(job, workers=size) for job, size in jobs)
        return replace(drawn, trace=trace)


def _sizes(rng: np.random.Generator, count: int) -> Iterator[int]:
    small = rng.random(count) < SMALL_PART
    sizes = np.where(small, rng.choice(SMALL, count), rng.choice(LARGE, count))
    yield from sizes.tolist()


def main() -> None:
    """Run and print the tables."""
    options = _options()
    trace = _trace(options.data)
    cases = [
        _case(options, trace, world, load) for world in options.worlds for load in options.loads
    ]
    rows = results(cases, options, options.seeds)
    for world in options.worlds:
        for load in options.loads:
            mine = [row for row in rows if (row["world"], row["load"]) == (world, f"{load:g}")]
            _print(f"{world}, load {load:g}", mine, options.policies, load)


def _options() -> argparse.Namespace:
    parser = common_options(__doc__, POLICIES)
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--worlds", nargs="+", default=["rtx3090", "v100"], choices=worlds.NAMES)
    parser.add_argument("--gangs", default="paper", choices=["paper", "recorded"])
    parser.add_argument("--beliefs", default="noise:0.065", help="table of section 6: 0.06-0.07")
    parser.add_argument("--jobs", type=int, default=240, help="at load 1")
    return parsed(parser)


def _trace(data: Path) -> Trace:
    period = busiest_period(read_trace(data / "philly" / "philly.csv.gz"), PERIOD_S)
    return at_most(from_zero(period), LONGEST_S)


def _case(options: argparse.Namespace, trace: Trace, world: str, load: float) -> Case:
    labels = {
        "world": world,
        "load": f"{load:g}",
        "jobs_asked": str(options.jobs),
        "gangs": options.gangs,
        "beliefs": options.beliefs,
    }
    kind = GangSetup if options.gangs == "paper" else Setup
    setup = kind(
        trace=trace,
        world=worlds.named(world, options.data, nodes=16),
        sample=round(load * options.jobs),
        beliefs=beliefs_named(options.beliefs),
    )
    return Case(labels, setup)


def _print(title: str, rows: list[Row], policies: Sequence[str], load: float) -> None:
    castor = number((row for row in rows if row["policy"] == "castor"), "jct_mean_s")
    head = [
        "policy",
        "mean JCT h",
        "queueing h",
        "small + large",
        "makespan h",
        "Castor is lower by",
    ]
    body = []
    for policy, mine in by_policy(rows, policies):
        paper = PAPER.get(policy, ("-",) * 3) if load == 1 else ("-",) * 3
        hours = {
            name: f"{number(mine, f'{name}_s') / 3600:.2f}"
            for name in ("jct_mean", "queueing_mean", "jct_small", "jct_large", "makespan")
        }
        ours = (
            hours["jct_mean"],
            hours["queueing_mean"],
            f"{hours['jct_small']} + {hours['jct_large']}",
        )
        compared = [f"{own} ({theirs})" for own, theirs in zip(ours, paper, strict=True)]
        lower = 1 - castor / number(mine, "jct_mean_s")
        body.append([label(policy, mine), *compared, hours["makespan"], f"{100 * lower:.0f} %"])
    print_table(f"Castor 9.4: {title}; ours (paper's)", head, body)
    print_waits(title, rows, policies)


if __name__ == "__main__":
    end_in_one_line(main)
