"""The twelve jobs of the live tutorial as gangs over nodes, and the outcome.

Three workloads, four jobs of each, as on the page (docs/tutorials/live.md), but of one, two and
three ranks. Each size is profiled once. Every rank appends a line to a
file as it starts, so starts are counted by the jobs themselves.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.live_tutorial import FILE, KINDS, PAGE
from dovetail.executor.jobs.events import Placed
from dovetail.executor.jobs.journal import read_events

WORKERS = {"dense": 1, "stream": 2, "means": 3}
"""Ranks of a job: three devices hold the largest."""

JOBS_OF_A_KIND = 4

WATCH = (
    "sample_s=0.1,warm_up_s=0.1,settle_s=0.1,profile_s=0.5,profile_most_s=4,"
    "window_s=0.5,tolerance=0.5"
)
"""How long the service profiles jobs of about a second (``dovetail serve --watch``)."""

TENTHS = 12
"""About how long a job takes alone, in tenths of a second, as on the page."""


def tutorial_jobs(folder: Path, tenths: int = TENTHS) -> Sequence[Mapping[str, object]]:
    """Write the page's programs into a shared folder, and return the jobs to submit."""
    files = dict(FILE.findall(PAGE.read_text(encoding="utf-8")))
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    steps = dict(re.findall(r"(\w+)\.py \$\(\((\d+)", files["submit.sh"]))
    return [
        {
            "command": ["sh", "-c", _counted(kind, int(steps[kind]) * tenths)],
            "workload": kind,
            "cwd": str(folder),
            "env": {"PATH": os.environ["PATH"]},
            "workers": WORKERS[kind],
            "estimate_s": 3.0,
        }
        for _ in range(JOBS_OF_A_KIND)
        for kind in KINDS
    ]


def _counted(kind: str, steps: int) -> str:
    started = 'echo "$DOVETAIL_RUN $DOVETAIL_RANK" >> tutorial-starts'
    return f"{started}; exec {sys.executable} {kind}.py {steps}"


class Outcome(NamedTuple):
    """The outcome of the load.

    Attributes
    ----------
    starts : Counter of (str, int)
        By run and rank, as the jobs counted them.
    expected : Counter of (str, int)
        Every rank of every job's last run, once: on a busy machine a run may be refused.
    over_nodes : int
        Gangs with ranks on several nodes.
    """

    starts: Counter[tuple[str, int]]
    expected: Counter[tuple[str, int]]
    over_nodes: int


def outcome_of(folder: Path, home: Path) -> Outcome:
    """Return the outcome of the load, from the jobs' own lines and the service's journal."""
    lines = (folder / "tutorial-starts").read_text(encoding="utf-8").splitlines()
    starts = Counter((line.split()[0], int(line.split()[1])) for line in lines)
    events = [entry.event for entry in read_events(home)]
    placed = [event.run for event in events if isinstance(event, Placed)]
    runs = {run.job: run for run in placed if run.spec.cwd == str(folder)}.values()
    expected = Counter((run.id, rank) for run in runs for rank in range(len(run.seats)))
    over_nodes = sum(len({seat.gpu.partition("/")[0] for seat in run.seats}) > 1 for run in runs)
    return Outcome(starts, expected, over_nodes)
