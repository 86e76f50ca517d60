"""The head of a Slurm pool's Ray, beside the service: who ends a minute after that.

::

    python -m dovetail.executor.live.nodes.slurm_head --files FILES --address ADDRESS:PORT

It runs nothing but Ray's own. What it knows of the cluster is on disk, so that nodes, agents and
jobs go on when it dies and is started again. A service that was away for a minute has no leases
left, and hence no jobs; Ray on the nodes of its pilots waits there for the next head.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.directories import LOCK
from dovetail.executor.live.nodes.ray_finding import host_and_port
from dovetail.executor.live.nodes.slurm_ray import (
    environment,
    keep,
    ray_start,
)

STAY_S: Final = 60.0
"""Seconds for which the head stays after its service: longer than any lease."""


def keep_head(files: Path, address: str, port: int) -> None:
    """Keep the head of a pool at an address until it has no service any more."""
    env = {
        **environment(files, files, address),
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(files / "gcs"),
    }
    head = ("--head", f"--port={port}", "--no-monitor", "--include-dashboard=false")
    keep(lambda folder: (ray_start(address, folder, *head), env), _Wanted(files.parent / LOCK))


class _Wanted:
    """Tells whether a service has run within ``STAY_S``."""

    def __init__(self, lock: Path) -> None:
        self._lock, self._seen_s = lock, boot_s()

    def __call__(self) -> bool:
        with suppress(OSError, ValueError):
            if Path(f"/proc/{int(self._lock.read_text())}").exists():
                self._seen_s = boot_s()
        return boot_s() < self._seen_s + STAY_S


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep the head of a pool."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--address", type=host_and_port, required=True)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    keep_head(options.files, *options.address)
    return 0


if __name__ == "__main__":
    sys.exit(main())
