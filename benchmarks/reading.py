"""The cost of reading and writing many pairs, and of a plan with them.

    python benchmarks/reading.py [WORKLOADS]

1,000 one-GPU jobs of 300 workloads unless another number is named, and every pair of these without
caps and at nine splits: 450,300 pairs with made-up slowdowns. They are read from JSON as a whole
instance, and from CSV and Parquet as tables for an instance without them. Peers read the same
files: ``json`` with a record of pydantic for each pair, and pandas, which checks nothing. The plans
are those of the instance with its pairs and without any, read from JSON.

Each way runs in a process of its own; the program prints its processor time, and the growth of its
peak memory, both after imports, and the whole peak.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dovetail import Instance
from dovetail.instances.files import read_instance, write_instance
from dovetail.instances.generate import generate

JOBS, SEED = 1000, 1


def main() -> None:
    """Write the files, and measure each way, or only one that is named with the folder of files."""
    if len(sys.argv) > 2:
        way, folder = sys.argv[1:]
        print("| " + " | ".join([way, *measured(way, Path(folder))]) + " |")
        return
    workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with TemporaryDirectory() as folder:
        write_files(generate(JOBS, seed=SEED, workloads=workloads, gangs=False), Path(folder))
        print("| | CPU s | MiB more | MiB in all |\n|---|--:|--:|--:|", flush=True)
        for way in WAYS:
            subprocess.run([sys.executable, __file__, way, folder], check=True)


def write_files(instance: Instance, folder: Path) -> None:
    """Write an instance with its pairs and without, and its pairs as tables."""
    import pandas as pd

    write_instance(instance, folder / "pairs.json")
    write_instance(instance.altered(slowdowns=()), folder / "alone.json")
    known, names = instance.slowdowns, np.array(instance.slowdowns.names)
    table = pd.DataFrame({"gpu_model": next(iter(instance.places.values())).gpu.model}, known.row)
    for k in (0, 1):
        table[f"workload_{k + 1}"] = names[known.workload[:, k]]
        table[f"slowdown_{k + 1}"] = known.slowdown[:, k]
        share = pd.Series(known.share[:, k], dtype="Int64")
        table[f"share_{k + 1}"] = share.mask(share == 0)
    table.to_csv(folder / "pairs.csv", index=False)
    table.to_parquet(folder / "pairs.parquet", index=False)


def measured(way: str, folder: Path) -> tuple[str, str, str]:
    """Return the processor time of one way, the growth of the peak and the peak."""
    run = WAYS[way](folder)
    before, started = peak_mib(), time.process_time()
    kept = run()
    seconds, after = time.process_time() - started, peak_mib()
    del kept
    return f"{seconds:.2f}", f"{after - before:.0f}", f"{after:.0f}"


Way = Callable[[Path], Callable[[], object]]
"""What prepares a way for a folder of files: imports, and what it starts from."""


def json_read(folder: Path) -> Callable[[], object]:
    """Read the instance."""
    return lambda: read_instance(folder / "pairs.json")


def json_records(folder: Path) -> Callable[[], object]:
    """Read the file with a record for each pair."""
    from dovetail.instances.slowdowns.entry import SlowdownEntry

    def read() -> object:
        data = json.loads((folder / "pairs.json").read_text(encoding="utf-8"))
        return [SlowdownEntry.model_validate(entry) for entry in data["slowdowns"]]

    return read


def json_written(folder: Path) -> Callable[[], object]:
    """Write the instance."""
    instance = read_instance(folder / "pairs.json")
    return lambda: write_instance(instance, folder / "written.json")


def table_read(name: str) -> Way:
    """Read a table for the instance without pairs."""

    def prepared(folder: Path) -> Callable[[], object]:
        from dovetail.instances.importers.pairs import with_pairs

        if name.endswith(".parquet"):
            import pyarrow.parquet  # noqa: F401
        instance = read_instance(folder / "alone.json")
        return lambda: with_pairs(instance, folder / name)

    return prepared


def pandas_read(name: str) -> Way:
    """Read a table with pandas."""

    def prepared(folder: Path) -> Callable[[], object]:
        import pandas as pd
        import pyarrow.parquet  # noqa: F401

        read = pd.read_csv if name.endswith(".csv") else pd.read_parquet
        return lambda: read(folder / name)

    return prepared


def plan(name: str) -> Way:
    """Read an instance, and plan it; the engine is loaded from its cache."""

    def prepared(folder: Path) -> Callable[[], object]:
        from dovetail import solve

        return lambda: solve(read_instance(folder / name), explain=False)

    return prepared


WAYS: dict[str, Way] = {
    "JSON, read": json_read,
    "JSON, read as records (`json`, pydantic)": json_records,
    "JSON, written": json_written,
    "CSV, read": table_read("pairs.csv"),
    "CSV, read by pandas": pandas_read("pairs.csv"),
    "Parquet, read": table_read("pairs.parquet"),
    "Parquet, read by pandas": pandas_read("pairs.parquet"),
    "plan with the pairs": plan("pairs.json"),
    "plan without pairs": plan("alone.json"),
}


def peak_mib() -> float:
    """Return the peak of this process; that of ``getrusage`` begins with its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
