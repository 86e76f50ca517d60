"""The cost of renewing a node's lease, for any number of ranks that run under it.

python benchmarks/live/leases.py [DIRECTORY ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from dovetail.executor.pools.runs.lease import NodeLease
from dovetail.executor.system.clock import boot_s

RENEWALS = 5000
FOR_S = 15.0


def renewals_us(directory: Path) -> list[float]:
    """Return how long renewals took, in microseconds, the shortest first."""
    lease = NodeLease(directory / "lease")
    return sorted(_renewal_us(lease) for _ in range(RENEWALS))


def _renewal_us(lease: NodeLease) -> float:
    began = time.perf_counter()
    lease.renew_until(boot_s() + FOR_S)
    return (time.perf_counter() - began) * 1e6


def main() -> None:
    """Print a line for each directory."""
    print("microseconds   median     99 %  longest")
    for parent in sys.argv[1:] or [tempfile.gettempdir()]:
        with tempfile.TemporaryDirectory(dir=parent) as directory:
            took = renewals_us(Path(directory))
        figures = (took[len(took) // 2], took[len(took) * 99 // 100], took[-1])
        print(f"{parent:12}" + "".join(f"{figure:9.1f}" for figure in figures))


if __name__ == "__main__":
    main()
