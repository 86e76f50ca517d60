"""Make the shipped trace ``library:h200-week`` and its world: ``python benchmarks/h200_week.py``.

The world is two machines of eight H200 with the eight workloads and the pairs that we measured on
one, without caps and at 50/50. What was not measured, or was too slow to be, may not share. The
jobs are those of ``library:lab-week``, which is synthetic (arrivals, gangs and durations), but each
runs one of the eight workloads, drawn at random, and three in four have a gSLA of 1.2, 1.5, 2 or 3.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from dovetail.executor.simulation.worlds import world_of
from dovetail.instances.datasets.files import read_dataset
from dovetail.instances.instance import Instance
from dovetail.instances.traces import Trace, library_trace, write_trace
from dovetail.instances.traces.draws import with_gslas, with_workloads

SHIPPED: Final = Path(__file__).parents[1] / "instances" / "traces" / "shipped"
SEED: Final = 16
HEAD: Final = """\
# Two machines of 8 H200, and the slowdowns of pairs of 8 workloads without caps and at 50/50.
# Source: measured by us on one H200 on 27 November 2026, docs/evidence/hardware.md; pairs that were
# not measured may not share. Made by benchmarks/h200_week.py.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--to", type=Path, default=SHIPPED, help="folder of the two files")
    folder = parser.parse_args(arguments).to
    made = world()
    (folder / "h200-16.yaml").write_text(HEAD + "".join(text_of(made)), encoding="utf-8")
    write_trace(folder / "h200-week.csv", trace(made))


def world() -> Instance:
    """Return the world: measured."""
    found = world_of(read_dataset("library:h200-2026-11"), 2, 8)
    return found.replace(name="h200-16")


def trace(made: Instance) -> Trace:
    """Return the jobs: synthetic."""
    bare = library_trace("lab-week").replace(
        dataclasses.replace(job, workload=None, gsla=None) for job in library_trace("lab-week").jobs
    )
    named = with_workloads(bare, sorted(made.workloads), SEED)
    return with_gslas(named, "choice:1.2,1.5,2,3@0.75", SEED)


def text_of(made: Instance) -> Iterator[str]:
    """Yield the lines of a file, a workload or an entry a line."""
    data: dict[str, Any] = made.to_data()
    yield f"format: {data['format']}\nname: {data['name']}\ncluster:\n"
    for key, value in data["cluster"].items():
        if key != "nodes":
            yield f"  {key}: {flow(value)}"
    yield "  nodes:\n"
    yield from (f"    - {flow(node)}" for node in data["cluster"]["nodes"])
    yield "workloads:\n"
    yield from (f"  {name}: {flow(value)}" for name, value in sorted(data["workloads"].items()))
    yield "jobs: []\nslowdowns:\n"
    yield from (f"  - {flow(entry)}" for entry in data["slowdowns"])


def flow(value: object) -> str:
    """Return a value on one line."""
    text: str = yaml.safe_dump(
        rounded(value), default_flow_style=True, width=10_000, sort_keys=False
    )
    return text.replace("\n...\n", "\n")


def rounded(value: object) -> object:
    """Return data with six significant digits of each number."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    main()
