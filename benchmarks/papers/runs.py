"""Run policies on drawn scenarios in parallel processes; every result is a row of a CSV file.

Shared by the scripts next to it. A run that is already in the file is not repeated: a script that
was stopped continues where it was. Failed runs are tried again. The file is the same on every
machine: it has no times of this machine.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conservation import violations

from dovetail.executor.simulation import History
from dovetail.executor.simulation.metrics import METRICS, job_table, summary
from dovetail.executor.simulation.setup import Scenario, Setup
from dovetail.instances.errors import DovetailError
from dovetail.solver.pairing import compile_kernels
from dovetail.solver.policies.registry import policy_named, policy_names

DATA = Path(__file__).parents[3] / "shared" / "data"

EXTRA = (
    "wait_p99_s",
    "speedup_mean",
    "kernel_utilisation",
    "jct_small_s",
    "jct_large_s",
    "queueing_small_s",
    "queueing_large_s",
)
"""What is measured in addition to ``metrics.METRICS``, see ``measured``."""

_FIXED = ("policy", "seed", "error")

_SIMULATED = tuple(name for name in METRICS if not name.startswith("decide_"))
"""The metrics that do not depend on the machine."""

_LARGE = 8
_AHEAD = 4
"""Runs that are begun for each process before the first is waited for."""

Row = dict[str, str]


class Case(NamedTuple):
    """A setup with what tells it from the others of its file, which is columns there."""

    labels: dict[str, str]
    setup: Setup


def common_options(description: str | None, policies: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the options of every script."""
    parser = argparse.ArgumentParser(
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the measured data")
    parser.add_argument("--policies", nargs="+", default=list(policies), help="or all")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 0")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--check", action="store_true", help="hold every run against physics")
    parser.add_argument("--out", type=Path, required=True, help="CSV file, gone on with if there")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options; ``--policies all`` means every policy.

    Raises
    ------
    UnsupportedError
        When there is no such policy or option of one.
    """
    options = parser.parse_args()
    if options.policies == ["all"]:
        options.policies = list(policy_names())
    for policy in options.policies:
        policy_named(policy)
    return options


def results(cases: Sequence[Case], options: argparse.Namespace, seeds: int) -> list[Row]:
    """Return a row for every case, policy and seed, those of the file included."""
    out: Path = options.out
    columns = [*cases[0].labels, *_FIXED, *_SIMULATED, *EXTRA]
    rows = _kept(out, columns)
    done = {_key(row, columns) for row in rows}
    wanted = {
        _key({**case.labels, "policy": policy, "seed": str(seed)}, columns): (case, seed, policy)
        for case in cases
        for seed in range(seeds)
        for policy in options.policies
    }
    left = [task for key, task in wanted.items() if key not in done]
    if any(policy.partition(":")[0] == "dovetail" for _, _, policy in left):
        compile_kernels()  # else every process would
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if not rows:
            writer.writeheader()
        for k, (row, wall_s) in enumerate(_run_all(left, options.workers, options.check), 1):
            rows.append(row)
            writer.writerow(row)
            file.flush()
            said = row["error"] or f"{wall_s:.1f} s"
            labels = " ".join(row[name] for name in columns[: len(cases[0].labels)])
            print(
                f"{k}/{len(left)} {labels} {row['policy']} seed {row['seed']}: {said}",
                file=sys.stderr,
                flush=True,
            )
    return [row for row in rows if _key(row, columns) in wanted]


def measured(history: History, scenario: Scenario) -> dict[str, float]:
    """Return the metrics of a run, those of ``EXTRA`` included.

    - ``wait_p99_s``: of the queueing delay;
    - ``speedup_mean``: solo over held time (Co-scheML, section 6.1.2);
    - ``kernel_utilisation``: solo GPU utilisation times solo time, over GPUs x makespan: how long
      kernels ran if sharing neither adds any nor takes any away; NaN without utilisations;
    - ``jct_small_s``, ``jct_large_s``, ``queueing_...``: the part of the mean that jobs of up to 8
      GPUs and of more contribute, so that both add up to it (as in Castor, table 5).
    """
    jobs = job_table(history, scenario.trace)
    found = summary(history, scenario.trace)
    profiles = [scenario.world.workloads[name].metrics for name in jobs["workload"]]
    use = np.array([m.gpu_util if m and m.gpu_util is not None else np.nan for m in profiles])
    kernels = (use * jobs["solo_s"] * jobs["workers"]).sum()
    found["wait_p99_s"] = float(np.percentile(jobs["queueing_s"], 99))
    found["speedup_mean"] = float((jobs["solo_s"] / jobs["held_s"]).mean())
    found["kernel_utilisation"] = float(kernels / (history.gpus * found["makespan_s"]))
    large = jobs["workers"] > _LARGE
    for name in ("jct", "queueing"):
        for size, mask in (("small", ~large), ("large", large)):
            found[f"{name}_{size}_s"] = float(jobs[f"{name}_s"][mask].sum() / large.size)
    return found


def number(rows: Iterable[Row], metric: str) -> float:
    """Return the mean of a metric over the runs that have it; NaN if there is none."""
    values = [float(row[metric]) for row in rows]
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def ratio(rows: Sequence[Row], others: Sequence[Row], metric: str, of: Sequence[str]) -> float:
    """Return the mean over scenarios of a metric over that of another policy on the same one."""

    def place(row: Row) -> tuple[str, ...]:
        return tuple(row[name] for name in of)

    base = {place(row): float(row[metric]) for row in others if not row["error"]}
    found = [
        float(row[metric]) / base[place(row)]
        for row in rows
        if not row["error"] and place(row) in base
    ]
    return fmean(found) if found else math.nan


def by_policy(rows: Iterable[Row], policies: Sequence[str]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of each policy, in the order given."""
    ordered = sorted(rows, key=lambda row: policies.index(row["policy"]))
    for policy, group in groupby(ordered, lambda row: row["policy"]):
        yield policy, list(group)


def label(policy: str, rows: Sequence[Row]) -> str:
    """Return the name of a policy for a table, with a note if some of its runs failed."""
    ended = sum(not row["error"] for row in rows)
    return policy if ended == len(rows) else f"{policy} ({ended} of {len(rows)} runs)"


def print_table(title: str, head: Sequence[str], body: Iterable[Sequence[str]]) -> None:
    """Print a table as Markdown."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(head) + " |")
    print("|---|" + "--:|" * (len(head) - 1))
    for cells in body:
        print("| " + " | ".join(cells) + " |")


def print_waits(title: str, rows: Sequence[Row], policies: Sequence[str]) -> None:
    """Print how long jobs waited at worst, and what failed."""
    head = ["policy", "mean wait h", "p99 wait h", "longest wait h", "preemptions", "OOM starts"]
    body = []
    for policy, mine in by_policy(rows, policies):
        hours = [
            f"{number(mine, name) / 3600:.3g}"
            for name in ("queueing_mean_s", "wait_p99_s", "queueing_max_s")
        ]
        counts = [f"{number(mine, name):.0f}" for name in ("preemptions", "out_of_memory")]
        body.append([label(policy, mine), *hours, *counts])
    print_table(f"Starvation: {title} (means over runs)", head, body)
    failed = Counter((row["policy"], row["error"]) for row in rows if row["error"])
    for (policy, error), count in failed.items():
        print(f"\n{policy} failed in {count} of the runs: {error}")


def end_in_one_line(main: Callable[[], None]) -> None:
    """Run a script; what a user can do wrong ends it with one line and status 2."""
    try:
        main()
    except DovetailError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)


def _key(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    labels = columns[: columns.index("error")]
    return tuple(row[name] for name in labels)


def _kept(out: Path, columns: Sequence[str]) -> list[Row]:
    """Return the whole rows of runs that ended well, and drop the others from the file."""
    if not out.exists():
        return []
    with out.open(newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames is not None and list(reader.fieldnames) != list(columns):
            raise DovetailError(f"{out}: has other columns; name another file")
        whole = (row for row in reader if None not in row and None not in row.values())
        rows = [row for row in whole if not row["error"]]
    temporary = out.with_name(f".{out.name}.tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if rows:
            writer.writeheader()
        writer.writerows(rows)
    temporary.replace(out)
    return rows


_Task = tuple[Case, int, str]


def _run_all(tasks: Sequence[_Task], workers: int, check: bool) -> Iterator[tuple[Row, float]]:
    """Yield the rows, and the seconds each took, in the order of the tasks.

    A scenario is drawn once for all policies.
    """
    drawn = _drawn(tasks)
    if workers == 1:
        for labels, scenario, seed, policy in drawn:
            yield _run(labels, scenario, seed, policy, check)
        return
    # Fresh processes: forked ones may hang in the threads of numerical libraries.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        pending: deque[Future[tuple[Row, float]]] = deque()
        for task in drawn:
            pending.append(pool.submit(_run, *task, check))
            if len(pending) >= _AHEAD * workers:
                yield pending.popleft().result()
        yield from (future.result() for future in pending)


def _drawn(tasks: Sequence[_Task]) -> Iterator[tuple[dict[str, str], Scenario, int, str]]:
    for (labels, seed), group in groupby(tasks, lambda task: (task[0].labels, task[1])):
        of_one = list(group)
        scenario = of_one[0][0].setup.scenario(seed)
        for _, _, policy in of_one:
            yield labels, scenario, seed, policy


def _run(
    labels: dict[str, str], scenario: Scenario, seed: int, policy: str, check: bool
) -> tuple[Row, float]:
    began = time.perf_counter()
    row = {**labels, "policy": policy, "seed": str(seed), "error": ""}
    try:
        history = scenario.simulate(policy_named(policy))
    except Exception as error:
        # One broken policy must not end hours of others.
        empty = dict.fromkeys([*_SIMULATED, *EXTRA], "nan")
        said = f"{type(error).__name__}: {error}".replace("\n", " ")
        return {**row, **empty, "error": said}, time.perf_counter() - began
    wall_s = time.perf_counter() - began
    found = measured(history, scenario)
    numbers = {name: f"{found[name]:.10g}" for name in (*_SIMULATED, *EXTRA)}
    if check:
        broken = violations(history, scenario.trace, scenario.world, scenario.options)
        row["error"] = f"impossible: {broken[0]}, {len(broken)} in all" if broken else ""
    return {**row, **numbers}, wall_s
